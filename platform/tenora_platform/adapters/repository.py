"""All SQL of the adapter registry. Row-level security stands beneath every statement."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.adapters.models import INSPECTING, READY, Adapter, AdapterRevision
from tenora_platform.adapters.names import CalledAdapter
from tenora_platform.auth.scope import TenantScope
from tenora_platform.db.session import Database
from tenora_platform.kit.ids import new_id


class ReadyRevision(NamedTuple):
    """What a request needs to know of the revision that it calls."""

    adapter_id: UUID
    revision: int
    digest: str


_READY_OF: Final = f"""
    select wanted.name, wanted.revision, ready.adapter_id, ready.revision, ready.digest
    from unnest($2::text[], $3::integer[]) as wanted (name, revision)
    cross join lateral (
        select r.adapter_id, r.revision, r.digest
        from adapters a
        join adapter_revisions r on r.adapter_id = a.id
        where a.tenant_id = $1 and r.tenant_id = $1
            and a.name = wanted.name and r.status = '{READY}'
            and (wanted.revision is null or r.revision = wanted.revision)
        order by r.revision desc
        limit 1
    ) ready
"""  # noqa: S608 - a constant of ours


async def get_ready(
    scope: TenantScope, database: Database, called: Sequence[CalledAdapter]
) -> dict[CalledAdapter, ReadyRevision]:
    """The READY revision that each of `called` means, without those that mean none.

    Every request for an adapter asks it, so it goes without a session.
    """
    names, revisions = [one.name for one in called], [one.revision for one in called]
    rows = await database.read(scope, _READY_OF, scope.tenant_id, names, revisions)
    return {CalledAdapter(name, wanted): ReadyRevision(*row) for name, wanted, *row in rows}


class AdapterRepository:
    """The registry as seen within one transaction."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get_adapter(self, scope: TenantScope, name: str) -> Adapter | None:
        """The adapter called `name`."""
        statement = select(Adapter).where(
            Adapter.tenant_id == scope.tenant_id, Adapter.name == name
        )
        return await self._session.scalar(statement)

    async def list_adapters(
        self, scope: TenantScope, *, after: str, limit: int
    ) -> Sequence[Adapter]:
        """Up to `limit` adapters whose names come after `after`, by name."""
        statement = (
            select(Adapter)
            .where(Adapter.tenant_id == scope.tenant_id, Adapter.name > after)
            .order_by(Adapter.name)
            .limit(limit)
        )
        return (await self._session.scalars(statement)).all()

    async def list_revisions(
        self, scope: TenantScope, adapters: Sequence[Adapter]
    ) -> Sequence[AdapterRevision]:
        """All revisions of `adapters`, newest first within each."""
        statement = (
            select(AdapterRevision)
            .where(
                AdapterRevision.tenant_id == scope.tenant_id,
                AdapterRevision.adapter_id.in_([adapter.id for adapter in adapters]),
            )
            .order_by(AdapterRevision.adapter_id, AdapterRevision.revision.desc())
        )
        return (await self._session.scalars(statement)).all()

    async def list_callable(self, scope: TenantScope) -> Sequence[tuple[str, datetime]]:
        """Name and first READY instant of every adapter that can be called, by name."""
        statement = (
            select(Adapter.name, func.min(AdapterRevision.ready_at))
            .join(AdapterRevision, AdapterRevision.adapter_id == Adapter.id)
            .where(Adapter.tenant_id == scope.tenant_id, AdapterRevision.status == READY)
            .group_by(Adapter.name)
            .order_by(Adapter.name)
        )
        rows = await self._session.execute(statement)
        return [(name, ready_at) for name, ready_at in rows if ready_at is not None]

    async def add_revision(self, scope: TenantScope, name: str, at: datetime) -> AdapterRevision:
        """A new revision under `name`, being inspected. Concurrent calls get distinct numbers."""
        await self._session.execute(
            insert(Adapter)
            .values(id=new_id(), tenant_id=scope.tenant_id, name=name, created_at=at)
            .on_conflict_do_nothing(index_elements=["tenant_id", "name"])
        )
        adapter_id = (
            await self._session.scalars(
                select(Adapter.id)
                .where(Adapter.tenant_id == scope.tenant_id, Adapter.name == name)
                .with_for_update()
            )
        ).one()
        newest = await self._session.scalar(
            select(func.max(AdapterRevision.revision)).where(
                AdapterRevision.adapter_id == adapter_id
            )
        )
        revision = AdapterRevision(
            tenant_id=scope.tenant_id,
            adapter_id=adapter_id,
            revision=(newest or 0) + 1,
            digest=None,
            status=INSPECTING,
            report={},
            size_bytes=0,
            max_rank=0,
            created_at=at,
            ready_at=None,
        )
        self._session.add(revision)
        await self._session.flush()
        return revision

    async def save(self, revision: AdapterRevision) -> None:
        """Write the present fields of `revision`, which may come from an earlier transaction."""
        await self._session.merge(revision)
