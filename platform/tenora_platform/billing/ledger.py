"""The ledger: booking charges, and the budgets that follow from them.

One entry is one transfer, so debits equal credits by construction. A tenant's entries are
numbered from 1 without gaps, in the order of commit, because its head row is locked first.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.repository import BudgetKey, LedgerRepository
from tenora_platform.db.session import Database
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id
from tenora_platform.kit.periods import PERIOD_KINDS, period_name
from tenora_platform.quotas.limits import ScopeKind

REVENUE_USAGE: Final = "revenue:usage"
USAGE_SOURCE: Final = "usage"


def receivable(tenant_id: UUID) -> str:
    """The account of what a tenant owes."""
    return f"tenant:{tenant_id}:receivable"


class UsageCharge(msgspec.Struct, frozen=True, kw_only=True):
    """What one request costs whom, and when. `amount_nanousd` may be 0: it is booked all the same.

    The charge belongs to the day and the month that contain `completed_at` in `time_zone`.
    """

    tenant_id: UUID
    project_id: UUID
    api_key_id: UUID
    request_id: str
    amount_nanousd: int
    price_version_id: UUID
    completed_at: datetime
    time_zone: str

    def budget_keys(self) -> list[BudgetKey]:
        """The six budgets that the charge counts towards: three scopes by two periods."""
        scopes: tuple[tuple[ScopeKind, UUID], ...] = (
            ("tenant", self.tenant_id),
            ("project", self.project_id),
            ("api_key", self.api_key_id),
        )
        names = [period_name(kind, self.completed_at, self.time_zone) for kind in PERIOD_KINDS]
        return [(self.tenant_id, *scope, name) for scope in scopes for name in names]


class BudgetProjection(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's word on one budget: all entries up to `seq` amount to `committed_nanousd`.

    `covered_request_ids` are requests of this batch that the amount contains.
    """

    tenant_id: UUID
    scope_kind: ScopeKind
    scope_id: str
    period_name: str
    committed_nanousd: int
    seq: int
    covered_request_ids: tuple[str, ...]


class Ledger:
    """Books charges in the caller's transaction: `lock`, then `book`, then `project`."""

    def __init__(self, session: AsyncSession, clock: Clock) -> None:
        self._repository = LedgerRepository(session)
        self._clock = clock
        self._heads: dict[UUID, int] = {}

    async def lock(self, tenant_ids: Collection[UUID]) -> None:
        """Take the tenants' heads until the transaction ends. Call it once, before `book`."""
        if tenant_ids:
            self._heads = await self._repository.lock_heads(tenant_ids)

    async def book(self, charges: Sequence[UsageCharge]) -> None:
        """Enter charges of locked tenants, in order, and add them to their budgets.

        The caller has made sure that none was entered before; the database refuses it if so.
        """
        if not charges:
            return
        amounts: Counter[BudgetKey] = Counter()
        entries = []
        for charge in charges:
            self._heads[charge.tenant_id] += 1
            entries.append(self._entry(charge))
            for key in charge.budget_keys():
                amounts[key] += charge.amount_nanousd
        await self._repository.append(entries, self._heads)
        await self._repository.add_spend(amounts, self._heads)

    async def project(self, charges: Sequence[UsageCharge]) -> list[BudgetProjection]:
        """Every budget that `charges`, booked now or before, count towards, as it stands."""
        covered: dict[BudgetKey, list[str]] = {}
        for charge in charges:
            for key in charge.budget_keys():
                covered.setdefault(key, []).append(charge.request_id)
        if not covered:
            return []
        spent = await self._repository.get_spend(covered.keys())
        return [_projection(key, spent, covered[key]) for key in sorted(covered)]

    def _entry(self, charge: UsageCharge) -> dict[str, Any]:
        return {
            "id": new_id(),
            "tenant_id": charge.tenant_id,
            "seq": self._heads[charge.tenant_id],
            "source": USAGE_SOURCE,
            "source_id": charge.request_id,
            "debit_account": receivable(charge.tenant_id),
            "credit_account": REVENUE_USAGE,
            "amount_nanousd": charge.amount_nanousd,
            "price_version_id": charge.price_version_id,
            "effective_at": charge.completed_at,
            "recorded_at": self._clock.now(),
        }


class BudgetLedger:
    """What budgets have spent according to the ledger, for admission after Redis lost it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def committed(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: str, period_name: str
    ) -> tuple[int, int]:
        """What is booked, in nano-USD, and the seq it is complete up to; (0, 0) if nothing is.

        Raises ServiceUnavailable if the database is away.
        """
        key: BudgetKey = (tenant_id, scope_kind, UUID(scope_id), period_name)
        async with self._database.system() as session:
            spent = await LedgerRepository(session).get_spend([key])
        return spent.get(key, (0, 0))


def _projection(
    key: BudgetKey, spent: Mapping[BudgetKey, tuple[int, int]], covered: list[str]
) -> BudgetProjection:
    tenant_id, scope_kind, scope_id, name = key
    committed_nanousd, seq = spent.get(key, (0, 0))
    return BudgetProjection(
        tenant_id=tenant_id,
        scope_kind=scope_kind,
        scope_id=str(scope_id),
        period_name=name,
        committed_nanousd=committed_nanousd,
        seq=seq,
        covered_request_ids=tuple(covered),
    )
