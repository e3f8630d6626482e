"""The registry's verbs: what a `model` string means, what can be called, how a revision moves on.

Each method is one transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tenora_engine.protocol.messages import AdapterRef
from tenora_platform.adapters.models import AdapterRevision
from tenora_platform.adapters.names import CalledAdapter, parse_model
from tenora_platform.adapters.repository import AdapterRepository, ReadyRevision, get_ready
from tenora_platform.adapters.schemas import (
    AdapterBody,
    AdapterPage,
    CallableAdapter,
    ResolvedModel,
    adapter_body,
)
from tenora_platform.auth.scope import TenantScope
from tenora_platform.db.session import Database
from tenora_platform.errors import InvalidInput, ModelNotFound, NotFound
from tenora_platform.kit.batcher import Batcher
from tenora_platform.kit.clock import Clock


class AdapterService:
    """The adapters of all tenants, each seen through its own scope."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ready = Batcher(self._get_ready)

    async def resolve(self, scope: TenantScope, model: str, *, base_model: str) -> ResolvedModel:
        """What `model` means at this moment: the base model or one immutable revision.

        Requests of one tenant that arrive together are looked up together.

        Raises ModelNotFound alike for absent, foreign and not READY.
        """
        if model == base_model:
            return ResolvedModel(model=model)
        called = parse_model(model)
        if called is None:
            raise ModelNotFound(model)
        row = await self._ready.get(scope, called)
        if row is None:
            raise ModelNotFound(model)
        return ResolvedModel(
            model=model,
            adapter=AdapterRef(digest=row.digest),
            adapter_id=row.adapter_id,
            revision=row.revision,
            name=called.name,
        )

    async def list_callable(self, scope: TenantScope) -> list[CallableAdapter]:
        """Every adapter with a READY revision, by name."""
        async with self._database.tenant(scope) as session:
            rows = await AdapterRepository(session).list_callable(scope)
        return [CallableAdapter(name=name, ready_at=ready_at) for name, ready_at in rows]

    async def list(self, scope: TenantScope, *, after: str, limit: int) -> AdapterPage:
        """A page of adapters in any state, by name, those after the name `after`.

        Raises InvalidInput if `after` is neither empty nor a name.
        """
        if after and parse_model(after) != (after, None):
            raise InvalidInput("'after' is not an adapter's name.", param="after")
        async with self._database.tenant(scope) as session:
            repository = AdapterRepository(session)
            rows = await repository.list_adapters(scope, after=after, limit=limit + 1)
            shown = rows[:limit]
            revisions = await repository.list_revisions(scope, shown)
        has_more = len(rows) > limit
        return AdapterPage(
            data=[adapter_body(row, revisions) for row in shown],
            has_more=has_more,
            next=shown[-1].name if has_more else None,
        )

    async def get(self, scope: TenantScope, name: str) -> AdapterBody:
        """The adapter called `name` with all revisions. Raises NotFound."""
        if parse_model(name) != (name, None):
            raise NotFound
        async with self._database.tenant(scope) as session:
            repository = AdapterRepository(session)
            row = await repository.get_adapter(scope, name)
            if row is None:
                raise NotFound
            return adapter_body(row, await repository.list_revisions(scope, [row]))

    async def start_revision(self, scope: TenantScope, name: str) -> AdapterRevision:
        """A new revision under the checked `name`, in the state `inspecting`."""
        async with self._database.tenant(scope) as session:
            return await AdapterRepository(session).add_revision(scope, name, self._clock.now())

    async def advance(self, scope: TenantScope, row: AdapterRevision, **changes: Any) -> None:
        """Set fields of `row` and store them. The caller moves `status` only forward."""
        for field, value in changes.items():
            setattr(row, field, value)
        async with self._database.tenant(scope) as session:
            await AdapterRepository(session).save(row)

    async def _get_ready(
        self, scope: TenantScope, called: Sequence[CalledAdapter]
    ) -> Mapping[CalledAdapter, ReadyRevision]:
        return await get_ready(scope, self._database, called)
