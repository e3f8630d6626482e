"""What one request asks of its limits: prompt, reserved output and money at one instant."""

from datetime import datetime

import msgspec

from tenora_platform.auth.principal import Principal
from tenora_platform.quotas.charges import plan_charges
from tenora_platform.quotas.limits import MAX_VALUE, capped_output_tokens
from tenora_platform.quotas.store import ReserveCall, ReserveMode


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The worst case of one request. Raises ValueError for counts that no request can have."""

    principal: Principal
    at: datetime
    prompt_tokens: int
    max_tokens: int
    max_tokens_given: bool
    cost_nanousd: int

    def __post_init__(self) -> None:
        if self.prompt_tokens < 0 or self.max_tokens < 1 or self.cost_nanousd < 0:
            raise ValueError("tokens and cost must not be negative, and max_tokens at least 1")

    @property
    def output_tokens(self) -> int:
        """What the client asked for, or what the limits leave room for if it named nothing."""
        if self.max_tokens_given:
            return self.max_tokens
        return capped_output_tokens(
            self.principal.limits, prompt_tokens=self.prompt_tokens, max_tokens=self.max_tokens
        )

    def call(self, request_id: str, mode: ReserveMode) -> ReserveCall:
        """The demand as one call to the store."""
        output = self.output_tokens
        charges = plan_charges(
            self.principal.limits,
            tokens=self.prompt_tokens + output,
            cost_nanousd=self.cost_nanousd,
            at=self.at,
            time_zone=self.principal.tenant_time_zone,
        )
        return ReserveCall(
            request_id=request_id,
            mode=mode,
            charges=charges,
            output=output,
            cost=min(self.cost_nanousd, MAX_VALUE),
        )
