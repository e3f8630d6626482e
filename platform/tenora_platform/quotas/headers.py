"""Limits as HTTP headers, in OpenAI's spelling: pure functions of limit states."""

import math
from typing import Protocol

from tenora_platform.quotas.limits import LimitKind
from tenora_platform.quotas.reservation import LimitState

_SUFFIXES: dict[LimitKind, str] = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
}


class SeenLimits(Protocol):
    """A reservation, a check or a refusal: anything that saw the limits."""

    @property
    def states(self) -> tuple[LimitState, ...]:
        """Each limit that applies to the request."""
        ...


def ratelimit_headers(outcome: SeenLimits) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, for the tightest of each kind."""
    headers: dict[str, str] = {}
    for kind, suffix in _SUFFIXES.items():
        states = [state for state in outcome.states if state.limit.kind == kind]
        if states:
            tightest = min(states, key=lambda state: (state.remaining, state.limit.value))
            headers[f"x-ratelimit-limit-{suffix}"] = str(tightest.limit.value)
            headers[f"x-ratelimit-remaining-{suffix}"] = str(tightest.remaining)
            headers[f"x-ratelimit-reset-{suffix}"] = duration(tightest.reset_ms)
    return headers


def retry_headers(wait_ms: int, *, should_retry: bool) -> dict[str, str]:
    """When to come back: `retry-after` (whole seconds, at least 1) and `retry-after-ms`.

    Without a wait that helps (`wait_ms` -1) only `x-should-retry` is set.
    """
    headers = {"x-should-retry": "true" if should_retry else "false"}
    if wait_ms >= 0:
        headers["retry-after"] = str(retry_after_s(wait_ms))
        headers["retry-after-ms"] = str(max(1, wait_ms))
    return headers


def retry_after_s(wait_ms: int) -> int:
    """The first whole second, at least 1, after which `wait_ms` have passed."""
    return max(1, math.ceil(wait_ms / 1000))


def duration(milliseconds: int) -> str:
    """A duration as OpenAI writes it: `120ms`, `1s`, `6m0s`, `1h0m5s`; rounded up to a second."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
