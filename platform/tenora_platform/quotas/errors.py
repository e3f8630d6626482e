"""A refusal by a limit, told honestly: which limit, how full it is, and whether to come back."""

from typing import Any

from tenora_platform.errors import RateLimited
from tenora_platform.quotas.headers import duration, ratelimit_headers, retry_after_s, retry_headers
from tenora_platform.quotas.limits import LimitKind, ScopeKind
from tenora_platform.quotas.reservation import LimitState

_SCOPES: dict[ScopeKind, str] = {
    "tenant": "organization",
    "project": "project",
    "api_key": "API key",
}
_KINDS: dict[LimitKind, str] = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "concurrency": "requests at once",
    "budget": "spend",
}
_SPEND_CODES: dict[ScopeKind, str] = {
    "tenant": "organization_spend_limit_exceeded",
    "project": "project_spend_limit_exceeded",
    "api_key": "api_key_spend_limit_exceeded",
}


class QuotaExceeded(RateLimited):
    """One limit refused the request; nothing was taken from any limit.

    `binding` is the limit to wait for longest, `states` are all of them. A budget answers with
    OpenAI's `insufficient_quota`, anything else with `rate_limit_exceeded`.
    """

    def __init__(self, binding: LimitState, states: tuple[LimitState, ...]) -> None:
        self.binding = binding
        self.states = states
        is_budget = binding.limit.kind == "budget"
        self.should_retry = not is_budget and binding.wait_ms >= 0
        super().__init__(
            _sentence(binding),
            code=_SPEND_CODES[binding.limit.scope_kind] if is_budget else None,
            openai_type="insufficient_quota" if is_budget else None,
            headers={
                **ratelimit_headers(self),
                **retry_headers(binding.wait_ms, should_retry=self.should_retry),
            },
            details={"quota": _details(binding)},
        )

    @property
    def retry_after_s(self) -> int | None:
        """Whole seconds after which the limit frees, or None where waiting never helps."""
        return None if self.binding.wait_ms < 0 else retry_after_s(self.binding.wait_ms)


def _sentence(state: LimitState) -> str:
    limit = state.limit
    scope, kind = _SCOPES[limit.scope_kind], _KINDS[limit.kind]
    if limit.kind == "budget":
        period = "daily" if limit.period == "day" else "monthly"
        return (
            f"The {period} spend limit of your {scope} leaves {state.remaining} of {limit.value} "
            f"nano-USD ({state.committed} spent, {state.held} reserved by requests in flight), and "
            f"this request may cost {state.requested}. Raise the limit, or wait for the period "
            f"after {state.period_name}."
        )
    if state.wait_ms < 0:
        return (
            f"This request needs {state.requested} {kind}, more than the {limit.capacity} that "
            f"your {scope} may ever use at once. Retrying does not help: shorten the prompt or "
            "lower max_tokens, or raise the limit."
        )
    return (
        f"The limit of {limit.value} {kind} of your {scope} is reached: {state.used} used, "
        f"{state.requested} requested. Retry after {duration(state.wait_ms)}."
    )


def _details(state: LimitState) -> dict[str, Any]:
    limit = state.limit
    details: dict[str, Any] = {
        "scope": limit.scope_kind,
        "scope_id": limit.scope_id,
        "kind": limit.kind,
        "limit": limit.value,
        "used": state.used,
        "remaining": state.remaining,
        "requested": state.requested,
        "reset_ms": state.reset_ms,
    }
    if limit.kind == "budget":
        details["period"] = state.period_name
        details["committed_nanousd"] = state.committed
        details["held_nanousd"] = state.held
    return details
