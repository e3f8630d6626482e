"""SQL of usage records: written by settlement across tenants, read by a tenant's own session."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.scope import TenantScope
from tenora_platform.kit.pagination import Cursor
from tenora_platform.usage.models import UsageRecordRow, UsageRejection


class UsageJournal:
    """Settlement's side, in a system session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def insert_new(self, rows: Sequence[dict[str, Any]]) -> set[str]:
        """Insert the rows whose request id is unknown; return the request ids inserted."""
        if not rows:
            return set()
        statement = insert(UsageRecordRow).on_conflict_do_nothing(index_elements=["request_id"])
        inserted = await self._session.scalars(
            statement.returning(UsageRecordRow.request_id), list(rows)
        )
        return set(inserted)

    async def get_rows(self, request_ids: Collection[str]) -> dict[str, UsageRecordRow]:
        """The stored rows of these requests, by request id."""
        query = select(UsageRecordRow).where(UsageRecordRow.request_id.in_(request_ids))
        return {row.request_id: row for row in await self._session.scalars(query)}

    async def reject(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep rejected records; one that is kept already stays as it is."""
        if rows:
            await self._session.execute(insert(UsageRejection).on_conflict_do_nothing(), list(rows))


class UsageFilter(NamedTuple):
    """Which records: completed in `[start, end)`, of a project, a key or a model; None is any."""

    start: datetime | None = None
    end: datetime | None = None
    project_id: UUID | None = None
    api_key_id: UUID | None = None
    model: str | None = None


class UsageTotals(NamedTuple):
    """Sums over some records. `amount_nanousd` is the sum of their ledger entries too."""

    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    amount_nanousd: int


class UsageRepository:
    """A tenant's side, in the tenant's own session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def list_records(
        self, scope: TenantScope, where: UsageFilter, *, limit: int, after: Cursor | None
    ) -> Sequence[UsageRecordRow]:
        """Up to `limit` records, the latest completed first, beginning behind `after`."""
        query = select(UsageRecordRow).where(*_conditions(scope, where))
        if after is not None:
            # Descending by instant and ascending by id, so one row comparison does not do.
            query = query.where(
                (UsageRecordRow.completed_at < after.at)
                | (
                    (UsageRecordRow.completed_at == after.at)
                    & (UsageRecordRow.request_id > after.key)
                )
            ).where(UsageRecordRow.completed_at <= after.at)
        query = query.order_by(UsageRecordRow.completed_at.desc(), UsageRecordRow.request_id)
        return (await self._session.scalars(query.limit(limit))).all()

    async def get_record(self, scope: TenantScope, request_id: str) -> UsageRecordRow | None:
        """The tenant's record of one request, or None."""
        return await self._session.scalar(
            select(UsageRecordRow).where(
                UsageRecordRow.tenant_id == scope.tenant_id,
                UsageRecordRow.request_id == request_id,
            )
        )

    async def totals(self, scope: TenantScope, where: UsageFilter) -> UsageTotals:
        """Sums over all records that match."""
        columns = (
            UsageRecordRow.prompt_tokens,
            UsageRecordRow.cached_tokens,
            UsageRecordRow.completion_tokens,
            UsageRecordRow.amount_nanousd,
        )
        sums = [func.coalesce(func.sum(column), 0) for column in columns]
        query = select(func.count(), *sums).where(*_conditions(scope, where))
        return UsageTotals(*map(int, (await self._session.execute(query)).one()))


def _conditions(scope: TenantScope, where: UsageFilter) -> list[ColumnElement[bool]]:
    row = UsageRecordRow
    equal = {"project_id": where.project_id, "api_key_id": where.api_key_id, "model": where.model}
    conditions = [row.tenant_id == scope.tenant_id]
    conditions += [
        getattr(row, name) == value for name, value in equal.items() if value is not None
    ]
    if where.start is not None:
        conditions.append(row.completed_at >= where.start)
    if where.end is not None:
        conditions.append(row.completed_at < where.end)
    return conditions
