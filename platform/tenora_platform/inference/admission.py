"""What admission decides about one call, as data, and the pure rules that it follows."""

from datetime import datetime

import msgspec

from tenora_engine.protocol.messages import EngineInfo, GenerateRequest, PreparedPrompt, Usage
from tenora_platform.adapters.schemas import ResolvedModel
from tenora_platform.auth.principal import Principal
from tenora_platform.billing.rating import Price
from tenora_platform.inference.parsing import Call
from tenora_platform.quotas.limits import capped_output_tokens
from tenora_platform.quotas.reservation import Reservation
from tenora_platform.usage.attribution import Attribution


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A call with everything that its worst case depends on. Nothing is reserved yet."""

    request_id: str
    principal: Principal
    call: Call
    info: EngineInfo
    resolved: ResolvedModel
    prompt: PreparedPrompt
    price: Price

    @property
    def room_tokens(self) -> int:
        """Output tokens that the window leaves after the prompt."""
        return max(1, self.info.context_length - len(self.prompt.token_ids))

    @property
    def max_tokens(self) -> int:
        """The output to reserve: what was asked for and fits, else what the limits can bear."""
        if self.call.max_tokens is not None:
            return min(self.call.max_tokens, self.room_tokens)
        return capped_output_tokens(
            self.principal.limits,
            prompt_tokens=len(self.prompt.token_ids),
            max_tokens=self.room_tokens,
        )

    @property
    def worst_case(self) -> Usage:
        """The most that the call can use: no cached token, every output token."""
        return Usage(prompt_tokens=len(self.prompt.token_ids), completion_tokens=self.max_tokens)


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A planned call that holds a reservation."""

    plan: Plan
    reservation: Reservation
    admitted_at: datetime

    @property
    def is_clamped(self) -> bool:
        """Whether a quota, and neither the client nor the window, bounds the output."""
        plan = self.plan
        return plan.call.max_tokens is None and self.reservation.max_tokens < plan.room_tokens

    def engine_request(self) -> GenerateRequest:
        """What the engine is asked to run, and no more than was reserved."""
        plan = self.plan
        tenant_id = plan.principal.tenant_id
        return GenerateRequest(
            request_id=plan.request_id,
            token_ids=plan.prompt.token_ids,
            template_version=plan.prompt.template_version,
            max_tokens=self.reservation.max_tokens,
            sampling=plan.call.sampling,
            adapter=plan.resolved.adapter,
            cache_scope=tenant_id.bytes,
            fairness_key=str(tenant_id),
            attribution=_attribution(plan).encode(),
        )


def _attribution(plan: Plan) -> Attribution:
    """Whom the engine's record is billed to; the engine carries it unread."""
    principal = plan.principal
    return Attribution(
        tenant_id=principal.tenant_id,
        project_id=principal.project_id,
        api_key_id=principal.api_key_id,
        time_zone=principal.tenant_time_zone,
        model=plan.resolved.model,
        base_model=plan.info.base_model,
        adapter_id=plan.resolved.adapter_id,
        adapter_revision=plan.resolved.revision,
        price_version_id=plan.price.id,
        endpoint=plan.call.endpoint,
        streamed=plan.call.is_streamed,
    )
