"""What a limit is: pure types and pure functions, no I/O and no state.

A principal carries the limits that apply to it; they are read anew for every request, so an
edited limit takes effect at once and there is no counter to reset.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

ScopeKind = Literal["tenant", "project", "api_key"]
LimitKind = Literal["requests_per_minute", "tokens_per_minute", "concurrency", "budget"]
BudgetPeriod = Literal["day", "month"]

MAX_RATE = 75_000_000_000
"""Largest rate per minute whose arithmetic stays exact (twice units x 60,000 is below 2**53)."""
MAX_VALUE = 2**53 - 1
"""Largest value of any other limit: Redis computes in doubles. As money it is 9,007,199 USD."""

_SCOPE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One ceiling on one scope. Build it by keyword; it is immutable and hashable.

    `value` is requests or tokens a minute, requests at once (`concurrency`), or nano-USD a period
    (`budget`); 0 admits nothing. `burst` is for the two rates: how much may pass in one instant,
    1 to `value`, by default `value`. `scope_id` is the id of the tenant, project or API key.

    Raises:
        ValueError: a field is outside its range; the message names it.
    """

    id: str
    scope_kind: ScopeKind
    scope_id: str
    kind: LimitKind
    value: int
    period: BudgetPeriod | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        if _SCOPE_ID.fullmatch(self.scope_id) is None:
            raise ValueError("scope_id must be 1 to 64 letters, digits, '-' or '_'")
        largest = MAX_RATE if self.is_rate else MAX_VALUE
        if not 0 <= self.value <= largest:
            raise ValueError(f"value must be 0 to {largest} for {self.kind}")
        if (self.period is not None) != (self.kind == "budget"):
            raise ValueError("period is required for a budget and for nothing else")
        if self.burst is not None and not (self.is_rate and 1 <= self.burst <= self.value):
            raise ValueError("burst is for rates only, 1 to value")

    @property
    def is_rate(self) -> bool:
        """Whether the limit drains with time (requests or tokens per minute)."""
        return self.kind in ("requests_per_minute", "tokens_per_minute")

    @property
    def capacity(self) -> int:
        """The most that one request can ever take from this limit."""
        return self.value if self.burst is None else self.burst


def capped_output_tokens(limits: Iterable[Limit], *, prompt_tokens: int, max_tokens: int) -> int:
    """`max_tokens` lowered until prompt and output fit the smallest token limit, at least 1.

    For requests that named no maximum: an estimate must never make a small limit unusable.
    Call it before pricing a reservation; `QuotaService.reserve` applies it too.
    """
    capacities = [limit.capacity for limit in limits if limit.kind == "tokens_per_minute"]
    room = min(capacities, default=prompt_tokens + max_tokens) - prompt_tokens
    return max(1, min(max_tokens, room))
