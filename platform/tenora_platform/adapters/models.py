"""Tables: adapters (a tenant's names) and adapter_revisions (immutable uploads under a name).

A revision is a digest plus the report that proves it. Its status only moves forward, and each
move is its own transaction, so a crash leaves the state that was reached.
"""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db.base import Base, Id

INSPECTING: Final = "inspecting"
"""The upload is stored and the engine has not yet judged its file."""
PROBING: Final = "probing"
"""The file is sound; the engine has not yet shown that it changes the base model."""
READY: Final = "ready"
"""Proven: it may be called. Terminal."""
REJECTED: Final = "rejected"
"""Never callable; the report says why. Terminal."""


class Adapter(Base):
    """A tenant's name for a line of revisions."""

    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), UniqueConstraint("tenant_id", "id"))

    id: Mapped[Id]
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str]
    created_at: Mapped[datetime]


class AdapterRevision(Base):
    """One upload. `digest` is set exactly when inspection accepted the file."""

    __tablename__ = "adapter_revisions"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"], ondelete="CASCADE"
        ),
        UniqueConstraint("adapter_id", "revision"),
        CheckConstraint(
            "status in ('inspecting', 'probing', 'ready', 'rejected')", name="status_known"
        ),
        CheckConstraint("status <> 'ready' or digest is not null", name="ready_has_digest"),
        CheckConstraint("(status = 'ready') = (ready_at is not null)", name="ready_has_instant"),
        CheckConstraint("revision >= 1", name="revision_positive"),
        CheckConstraint("size_bytes >= 0", name="size_not_negative"),
        CheckConstraint("max_rank >= 0", name="rank_not_negative"),
    )

    id: Mapped[Id]
    tenant_id: Mapped[UUID]
    adapter_id: Mapped[UUID]
    revision: Mapped[int]
    digest: Mapped[str | None]
    status: Mapped[str]
    report: Mapped[dict[str, Any]]
    """`problems`, `warnings`, what inspection found and what the probe measured."""
    size_bytes: Mapped[int]
    """0 until inspection accepted the file; likewise `max_rank`."""
    max_rank: Mapped[int]
    created_at: Mapped[datetime]
    ready_at: Mapped[datetime | None]
