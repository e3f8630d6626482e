"""The border between quota policy and where its state lives: one Protocol and its messages.

The messages go to the scripts as msgpack maps, so their field names are those the scripts read.
Policy (which limits, how much, which period) is decided above; atomicity and time below.
"""

from collections.abc import Sequence
from typing import Literal, Protocol
from uuid import UUID

import msgspec

LEASE_MS = 30_000
"""How long a reservation outlives its last renewal."""

ReserveMode = Literal["take", "check", "adopt"]
ReserveStatus = Literal["admitted", "refused", "cold", "ended"]
EndStatus = Literal["settled", "released", "unknown"]


class StoreUnavailableError(Exception):
    """The store did not answer in time, so the outcome is unknown. Every call may be repeated."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What one request takes from one limit.

    `field` names the counter (for a budget including the period, `stem` is that without it).
    `wait_ms` is the wait to announce where the store cannot compute one: until a budget's period
    ends, or a guess for concurrency.
    """

    kind: Literal["rate", "concurrency", "budget"]
    unit: Literal["requests", "tokens", "nanousd"]
    field: str
    value: int
    capacity: int
    amount: int
    stem: str = ""
    wait_ms: int = 0

    @property
    def period_name(self) -> str | None:
        """The period that a budget is charged in."""
        return self.field.removeprefix(f"{self.stem}:") if self.stem else None


class ReserveCall(msgspec.Struct, frozen=True, kw_only=True):
    """One admission: `charges` are taken all together or not at all.

    `output` (tokens) is remembered and returned to a duplicate; `cost` is in nano-USD.
    """

    request_id: str
    mode: ReserveMode
    charges: tuple[Charge, ...]
    output: int
    cost: int


class ChargeState(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as it stands after the call.

    `wait_ms` is 0 if the charge fits, and -1 if it never will. `reset_ms` is when the limit would
    be wholly free without further use. `committed` and `held` are set for budgets.
    """

    used: int
    remaining: int
    reset_ms: int
    wait_ms: int
    committed: int = 0
    held: int = 0


class ReserveReply(msgspec.Struct, frozen=True, kw_only=True):
    """`states` are in the order of the charges. `binding` and `cold` are indices of charges."""

    status: ReserveStatus
    output: int = 0
    states: tuple[ChargeState, ...] = ()
    binding: int | None = None
    cold: tuple[int, ...] = ()


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's word on one budget: `committed` nano-USD after entry number `seq`.

    `covered` are requests whose entries are part of it, so their holds may go.
    """

    field: str
    stem: str
    committed: int
    seq: int
    covered: tuple[str, ...] = ()


class QuotaStore(Protocol):
    """Atomic quota state of many tenants. Every method may raise `StoreUnavailableError`."""

    async def reserve(self, tenant_id: UUID, call: ReserveCall) -> ReserveReply:
        """Check all charges, then take all of them or none. Idempotent by `request_id`."""
        ...

    async def settle(
        self, tenant_id: UUID, request_id: str, *, tokens: int, cost: int
    ) -> EndStatus:
        """Turn a reservation into what was used. Idempotent: the first settlement counts."""
        ...

    async def release(self, tenant_id: UUID, request_id: str) -> EndStatus:
        """Give back everything that a reservation took. Idempotent; a settled one stays."""
        ...

    async def renew(self, tenant_id: UUID, request_ids: Sequence[str]) -> tuple[str, ...]:
        """Extend leases; return the ids that are no longer held."""
        ...

    async def project(self, tenant_id: UUID, projection: Projection) -> None:
        """Apply a projection. Idempotent and safe in any order."""
        ...
