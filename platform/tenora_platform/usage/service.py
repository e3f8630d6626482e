"""What a tenant may ask about its usage. Settlement, which writes it, is `settlement.py`."""

from collections.abc import Sequence

import msgspec

from tenora_platform.auth.scope import TenantScope
from tenora_platform.db.session import Database
from tenora_platform.errors import InvalidInput, NotFound
from tenora_platform.kit.pagination import Cursor, decode_cursor, encode_cursor
from tenora_platform.usage.models import UsageRecordRow
from tenora_platform.usage.repository import UsageFilter, UsageRepository, UsageTotals

MAX_PAGE = 1000


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Records, the latest completed first. `next_cursor` is None on the last page."""

    records: Sequence[UsageRecordRow]
    next_cursor: str | None


class UsageService:
    """Reads a tenant's usage, each call in a session of the tenant's own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_records(
        self,
        scope: TenantScope,
        where: UsageFilter = UsageFilter(),  # noqa: B008 - a named tuple is immutable
        *,
        limit: int = 100,
        after: str | None = None,
    ) -> UsagePage:
        """One page of 1 to 1000 records. Raises InvalidInput for a bad limit or cursor.

        Records that complete while a client pages do not shift or repeat what follows `after`.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit must be 1 to {MAX_PAGE}.", param="limit")
        cursor = None if after is None else decode_cursor(after)
        async with self._database.tenant(scope) as session:
            rows = await UsageRepository(session).list_records(
                scope, where, limit=limit + 1, after=cursor
            )
        page = rows[:limit]
        more = len(rows) > limit
        return UsagePage(records=page, next_cursor=_cursor_after(page[-1]) if more else None)

    async def get_record(self, scope: TenantScope, request_id: str) -> UsageRecordRow:
        """The record of one request. Raises NotFound, also for another tenant's."""
        async with self._database.tenant(scope) as session:
            row = await UsageRepository(session).get_record(scope, request_id)
        if row is None:
            raise NotFound("There is no usage record of this request, or not yet.")
        return row

    async def totals(
        self,
        scope: TenantScope,
        where: UsageFilter = UsageFilter(),  # noqa: B008 - a named tuple is immutable
    ) -> UsageTotals:
        """Sums over the records that match; money in nano-USD."""
        async with self._database.tenant(scope) as session:
            return await UsageRepository(session).totals(scope, where)


def _cursor_after(row: UsageRecordRow) -> str:
    return encode_cursor(Cursor(at=row.completed_at, key=row.request_id))
