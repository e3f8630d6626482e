"""Budgets that Redis does not know are read from the ledger, each once however many wait for it."""

import asyncio
from typing import Protocol
from uuid import UUID

import msgspec

from tenora_platform.quotas.charges import budget_field, budget_stem
from tenora_platform.quotas.limits import MAX_VALUE, Limit, ScopeKind
from tenora_platform.quotas.store import Charge, Projection, QuotaStore

DEADLINE_S = 2.0
"""The longest that a request waits for the ledger."""
_MAX_REMEMBERED = 10_000


class BudgetKey(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in one period."""

    tenant_id: UUID
    scope_kind: ScopeKind
    scope_id: str
    period_name: str

    @classmethod
    def of(cls, tenant_id: UUID, limit: Limit, charge: Charge) -> "BudgetKey":
        """The budget that a charge goes to. Raises ValueError if it goes to none."""
        if charge.period_name is None:
            raise ValueError("only a budget has a period")
        return cls(
            tenant_id=tenant_id,
            scope_kind=limit.scope_kind,
            scope_id=limit.scope_id,
            period_name=charge.period_name,
        )


class BudgetSource(Protocol):
    """The ledger's rollups, as admission needs them."""

    async def committed(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: str, period_name: str
    ) -> tuple[int, int]:
        """What is booked, in nano-USD, and the number of the last entry in it; (0, 0) if none."""
        ...


class BudgetSeeder:
    """Copies committed amounts from the source to the store. For one event loop."""

    def __init__(self, source: BudgetSource, store: QuotaStore) -> None:
        self._source = source
        self._store = store
        self._flights: dict[BudgetKey, asyncio.Task[None]] = {}
        self._landed: dict[BudgetKey, int] = {}
        self.num_landed = 0
        """Copies made so far; whoever asks the store notes it first."""

    async def seed(self, keys: list[BudgetKey], *, asked_at: int) -> None:
        """Return when the store knows all `keys`, which it lacked when asked.

        `asked_at` was `num_landed` before the store was asked: what has landed since is there
        by now, although the answer did not know it yet.

        Raises:
            TimeoutError: the source did not answer in time.
            StoreUnavailableError: the store did not take the answer.
        """
        missing = [key for key in keys if self._landed.get(key, 0) <= asked_at]
        await asyncio.gather(*(asyncio.shield(self._flight(key)) for key in missing))

    def _flight(self, key: BudgetKey) -> asyncio.Task[None]:
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._copy(key))
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
            self._flights[key] = flight
        return flight

    async def _copy(self, key: BudgetKey) -> None:
        async with asyncio.timeout(DEADLINE_S):
            committed, seq = await self._source.committed(
                key.tenant_id, key.scope_kind, key.scope_id, key.period_name
            )
        await self._store.project(key.tenant_id, budget_projection(key, committed, seq))
        self.num_landed += 1
        self._landed[key] = self.num_landed
        if len(self._landed) > _MAX_REMEMBERED:
            del self._landed[next(iter(self._landed))]


def budget_projection(
    key: BudgetKey, committed_nanousd: int, seq: int, covered: tuple[str, ...] = ()
) -> Projection:
    """What the store is told of a budget; an amount outside its exact range is brought into it."""
    budget = (key.scope_kind, key.scope_id, key.period_name)
    return Projection(
        field=budget_field(*budget),
        stem=budget_stem(*budget),
        committed=min(max(0, committed_nanousd), MAX_VALUE),
        seq=seq,
        covered=covered,
    )
