"""SQL of prices, the ledger and budgets. Runs in system sessions, except where a scope is taken."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.models import BudgetSpend, LedgerEntry, LedgerHead, PriceVersion
from tenora_platform.quotas.limits import ScopeKind


class PriceRepository:
    """Price versions: added and read, never changed."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, version: PriceVersion) -> bool:
        """Insert a version; False if one of the same model, target and instant exists."""
        statement = insert(PriceVersion).values(
            id=version.id,
            base_model=version.base_model,
            target=version.target,
            effective_at=version.effective_at,
            input_nanousd_per_mtok=version.input_nanousd_per_mtok,
            cached_input_nanousd_per_mtok=version.cached_input_nanousd_per_mtok,
            output_nanousd_per_mtok=version.output_nanousd_per_mtok,
            created_at=version.created_at,
        )
        inserted = await self._session.execute(
            statement.on_conflict_do_nothing().returning(PriceVersion.id)
        )
        return inserted.scalar_one_or_none() is not None

    async def list_versions(self, base_model: str) -> Sequence[PriceVersion]:
        """All versions for a base model, newest first."""
        query = select(PriceVersion).where(PriceVersion.base_model == base_model)
        return (await self._session.scalars(query.order_by(PriceVersion.effective_at.desc()))).all()

    async def get_versions(self, ids: Collection[UUID]) -> Sequence[PriceVersion]:
        """The versions with these ids; unknown ids are left out."""
        return (
            await self._session.scalars(select(PriceVersion).where(PriceVersion.id.in_(ids)))
        ).all()


BudgetKey = tuple[UUID, ScopeKind, UUID, str]
"""Tenant, kind of scope, id of the scope, name of the period."""


class LedgerRepository:
    """The append-only ledger, its heads, and the budgets projected from it."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def lock_heads(self, tenant_ids: Collection[UUID]) -> dict[UUID, int]:
        """The last seq of each tenant's ledger, locked until the transaction ends.

        Rows are locked in order of id, so concurrent callers wait and never deadlock.
        """
        ordered = sorted(tenant_ids)
        await self._session.execute(
            insert(LedgerHead)
            .values([{"tenant_id": tenant_id, "last_seq": 0} for tenant_id in ordered])
            .on_conflict_do_nothing()
        )
        rows = await self._session.execute(
            select(LedgerHead.tenant_id, LedgerHead.last_seq)
            .where(LedgerHead.tenant_id.in_(ordered))
            .order_by(LedgerHead.tenant_id)
            .with_for_update()
        )
        return {row.tenant_id: row.last_seq for row in rows}

    async def append(self, entries: Sequence[dict[str, Any]], heads: dict[UUID, int]) -> None:
        """Add entries whose `seq` continues the locked heads, and move the heads to `heads`."""
        await self._session.execute(insert(LedgerEntry), list(entries))
        statement = insert(LedgerHead).values(
            [
                {"tenant_id": tenant_id, "last_seq": last_seq}
                for tenant_id, last_seq in heads.items()
            ]
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id"], set_={"last_seq": statement.excluded.last_seq}
            )
        )

    async def add_spend(self, amounts: dict[BudgetKey, int], heads: dict[UUID, int]) -> None:
        """Add amounts (nano-USD) to budgets, noting the seq that they are now complete up to."""
        statement = insert(BudgetSpend)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id", "scope_kind", "scope_id", "period"],
                set_={
                    "spent_nanousd": BudgetSpend.spent_nanousd + statement.excluded.spent_nanousd,
                    "seq": statement.excluded.seq,
                },
            ),
            [
                {
                    "tenant_id": key[0],
                    "scope_kind": key[1],
                    "scope_id": key[2],
                    "period": key[3],
                    "spent_nanousd": amounts[key],
                    "seq": heads[key[0]],
                }
                for key in sorted(amounts)
            ],
        )

    async def get_spend(self, keys: Collection[BudgetKey]) -> dict[BudgetKey, tuple[int, int]]:
        """What each budget has spent (nano-USD) and up to which seq; unknown ones are left out."""
        key = (
            BudgetSpend.tenant_id,
            BudgetSpend.scope_kind,
            BudgetSpend.scope_id,
            BudgetSpend.period,
        )
        rows = await self._session.execute(
            select(*key, BudgetSpend.spent_nanousd, BudgetSpend.seq).where(
                tuple_(*key).in_(list(keys))
            )
        )
        return {
            (row.tenant_id, cast("ScopeKind", row.scope_kind), row.scope_id, row.period): (
                row.spent_nanousd,
                row.seq,
            )
            for row in rows
        }

    async def total(self, tenant_id: UUID, *, start: datetime, end: datetime) -> int:
        """The sum of a tenant's entries effective in `[start, end)`, in nano-USD."""
        total = await self._session.scalar(
            select(func.coalesce(func.sum(LedgerEntry.amount_nanousd), 0)).where(
                LedgerEntry.tenant_id == tenant_id,
                LedgerEntry.effective_at >= start,
                LedgerEntry.effective_at < end,
            )
        )
        return int(total or 0)
