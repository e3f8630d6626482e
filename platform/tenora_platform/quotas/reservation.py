"""What admission answers with: the state of every limit, a reservation, a dry run's verdict."""

from uuid import UUID

import msgspec

from tenora_platform.quotas.limits import Limit
from tenora_platform.quotas.store import ReserveCall, ReserveReply


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """One limit beside what is used of it, in the limit's own unit.

    `requested` is what the request asked for. For a budget `used` is `committed` (ledger) plus
    `held` (running or not yet booked). `wait_ms` is 0 where the request fits and -1 where waiting
    never helps. `reset_ms` is when the limit would be free again without further use.
    """

    limit: Limit
    requested: int
    used: int
    remaining: int
    reset_ms: int
    wait_ms: int
    committed: int = 0
    held: int = 0
    period_name: str | None = None


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may run, using at most `max_tokens` output tokens.

    `was_capped` says that the platform chose a smaller maximum than asked for, because the client
    named none. `states` describe each limit after this reservation was taken.
    """

    tenant_id: UUID
    request_id: str
    prompt_tokens: int
    max_tokens: int
    cost_nanousd: int
    was_capped: bool = False
    states: tuple[LimitState, ...] = ()


class QuotaCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `reserve` would answer now; nothing was taken. `binding` refuses, or is None."""

    max_tokens: int
    states: tuple[LimitState, ...]
    binding: LimitState | None

    @property
    def is_admitted(self) -> bool:
        """Whether the request would be admitted."""
        return self.binding is None


def limit_states(
    limits: tuple[Limit, ...], call: ReserveCall, reply: ReserveReply
) -> tuple[LimitState, ...]:
    """Name the limits that a store's answer is about; empty if the answer has no states."""
    return tuple(
        LimitState(
            limit=limit,
            requested=charge.amount,
            period_name=charge.period_name,
            **msgspec.structs.asdict(state),
        )
        for limit, charge, state in zip(limits, call.charges, reply.states, strict=False)
    )
