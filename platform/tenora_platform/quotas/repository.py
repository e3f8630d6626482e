"""SQL of quota limits. Runs in system sessions; every statement names the tenant."""

from collections.abc import Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from sqlalchemy import delete, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql import ColumnElement

from tenora_platform.quotas.limits import BudgetPeriod, Limit, LimitKind, ScopeKind
from tenora_platform.quotas.models import QuotaLimit


class LimitRepository:
    """Reads and writes within the caller's transaction."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def list_for_key(
        self, tenant_id: UUID, *, project_id: UUID, api_key_id: UUID
    ) -> tuple[Limit, ...]:
        """The limits of the tenant, the project and the key."""
        rows = await self._session.scalars(
            select(QuotaLimit).where(
                QuotaLimit.tenant_id == tenant_id,
                or_(
                    QuotaLimit.scope_kind == "tenant",
                    _is_scope("project", project_id),
                    _is_scope("api_key", api_key_id),
                ),
            )
        )
        return tuple(_limit(row) for row in rows)

    async def list_limits(self, tenant_id: UUID) -> Sequence[Limit]:
        """Every limit of the tenant, by scope and kind."""
        order = (QuotaLimit.scope_kind, QuotaLimit.scope_id, QuotaLimit.kind, QuotaLimit.period)
        rows = await self._session.scalars(
            select(QuotaLimit).where(QuotaLimit.tenant_id == tenant_id).order_by(*order)
        )
        return [_limit(row) for row in rows]

    async def put(self, tenant_id: UUID, limit: Limit, *, updated_at: datetime) -> Limit:
        """Insert `limit`, or replace the value of the one on the same scope, kind and period."""
        statement = insert(QuotaLimit).values(
            id=UUID(limit.id),
            tenant_id=tenant_id,
            scope_kind=limit.scope_kind,
            scope_id=UUID(limit.scope_id),
            kind=limit.kind,
            value=limit.value,
            period=limit.period,
            burst=limit.burst,
            updated_at=updated_at,
        )
        changed = {"value": limit.value, "burst": limit.burst, "updated_at": updated_at}
        stored = await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id", "scope_kind", "scope_id", "kind", "period"],
                set_=changed,
            ).returning(QuotaLimit),
            execution_options={"populate_existing": True},
        )
        return _limit(stored.scalar_one())

    async def remove(self, tenant_id: UUID, limit_id: UUID) -> bool:
        """Remove one limit of the tenant; False if there was none."""
        removed = await self._session.execute(
            delete(QuotaLimit)
            .where(QuotaLimit.tenant_id == tenant_id, QuotaLimit.id == limit_id)
            .returning(QuotaLimit.id)
        )
        return removed.scalar_one_or_none() is not None


def _is_scope(kind: ScopeKind, scope_id: UUID) -> ColumnElement[bool]:
    return (QuotaLimit.scope_kind == kind) & (QuotaLimit.scope_id == scope_id)


def _limit(row: QuotaLimit) -> Limit:
    return Limit(
        id=str(row.id),
        scope_kind=cast("ScopeKind", row.scope_kind),
        scope_id=str(row.scope_id),
        kind=cast("LimitKind", row.kind),
        value=row.value,
        period=cast("BudgetPeriod | None", row.period),
        burst=row.burst,
    )
