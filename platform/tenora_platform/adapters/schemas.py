"""What the adapter endpoints answer, and what other slices learn about an adapter."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from tenora_engine.protocol.messages import AdapterRef
from tenora_platform.adapters.models import READY, Adapter, AdapterRevision


class ResolvedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a `model` string means now. Without an adapter it is the base model."""

    model: str
    """As the client called it."""
    adapter: AdapterRef | None = None
    adapter_id: UUID | None = None
    revision: int | None = None
    name: str | None = None


class CallableAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter with a READY revision."""

    name: str
    ready_at: datetime


class RevisionBody(msgspec.Struct, frozen=True, kw_only=True):
    """One revision. `model` calls exactly this one."""

    id: UUID
    adapter: str
    revision: int
    model: str
    status: str
    digest: str | None
    size_bytes: int
    max_rank: int
    created_at: datetime
    ready_at: datetime | None
    report: dict[str, Any]
    object: Literal["adapter.revision"] = "adapter.revision"


class AdapterBody(msgspec.Struct, frozen=True, kw_only=True):
    """A name and its revisions, newest first. `revision` is the one that the name calls."""

    id: UUID
    name: str
    created_at: datetime
    revision: int | None
    revisions: list[RevisionBody]
    object: Literal["adapter"] = "adapter"


class AdapterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters by name. Pass `next` as `after` to continue."""

    data: list[AdapterBody]
    has_more: bool
    next: str | None
    object: Literal["list"] = "list"


def revision_body(name: str, row: AdapterRevision) -> RevisionBody:
    """The public form of `row`, a revision of the adapter called `name`."""
    return RevisionBody(
        id=row.id,
        adapter=name,
        revision=row.revision,
        model=f"{name}@{row.revision}",
        status=row.status,
        digest=row.digest,
        size_bytes=row.size_bytes,
        max_rank=row.max_rank,
        created_at=row.created_at,
        ready_at=row.ready_at,
        report=row.report,
    )


def adapter_body(row: Adapter, revisions: Sequence[AdapterRevision]) -> AdapterBody:
    """The public form of `row` with its own among `revisions`, which are newest first."""
    own = [revision for revision in revisions if revision.adapter_id == row.id]
    return AdapterBody(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        revision=next((revision.revision for revision in own if revision.status == READY), None),
        revisions=[revision_body(row.name, revision) for revision in own],
    )
