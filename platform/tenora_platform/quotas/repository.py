"""SQL of quota limits. Runs in system sessions; every statement names the tenant."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

from sqlalchemy import Row, and_, bindparam, delete, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.quotas.limits import BudgetPeriod, Limit, LimitKind, ScopeKind
from tenora_platform.quotas.models import QuotaLimit

# Asked for every key every few seconds: built once, and of columns, because an entity costs more.
_OF_KEY: Final = select(
    QuotaLimit.id,
    QuotaLimit.scope_kind,
    QuotaLimit.scope_id,
    QuotaLimit.kind,
    QuotaLimit.value,
    QuotaLimit.period,
    QuotaLimit.burst,
).where(
    QuotaLimit.tenant_id == bindparam("tenant_id"),
    or_(
        QuotaLimit.scope_kind == "tenant",
        and_(QuotaLimit.scope_kind == "project", QuotaLimit.scope_id == bindparam("project_id")),
        and_(QuotaLimit.scope_kind == "api_key", QuotaLimit.scope_id == bindparam("api_key_id")),
    ),
)


class LimitRepository:
    """Reads and writes within the caller's transaction."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def list_for_key(
        self, tenant_id: UUID, *, project_id: UUID, api_key_id: UUID
    ) -> tuple[Limit, ...]:
        """The limits of the tenant, the project and the key."""
        values = {"tenant_id": tenant_id, "project_id": project_id, "api_key_id": api_key_id}
        rows = await self._session.execute(_OF_KEY, values)
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


def _limit(row: QuotaLimit | Row[*tuple[Any, ...]]) -> Limit:
    return Limit(
        id=str(row.id),
        scope_kind=cast("ScopeKind", row.scope_kind),
        scope_id=str(row.scope_id),
        kind=cast("LimitKind", row.kind),
        value=row.value,
        period=cast("BudgetPeriod | None", row.period),
        burst=row.burst,
    )
