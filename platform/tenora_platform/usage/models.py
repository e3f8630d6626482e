"""Tables: usage_records (one row per admitted request) and usage_rejections.

Rows name tenants, projects and keys by id without foreign keys: they survive their deletion.
No row holds text of a prompt or of an answer.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, Index, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db.base import Base, Id


class UsageRecordRow(Base):
    """What one request used and cost. `amount_nanousd` follows from the counts and the price."""

    __tablename__ = "usage_records"
    __table_args__ = (
        CheckConstraint("outcome in ('stop', 'length', 'aborted', 'error')", name="outcome_known"),
        CheckConstraint("(outcome = 'error') = (error_code is not null)", name="error_has_code"),
        CheckConstraint("prompt_tokens >= 0", name="prompt_not_negative"),
        CheckConstraint("cached_tokens between 0 and prompt_tokens", name="cached_is_part"),
        CheckConstraint("completion_tokens >= 0", name="completion_not_negative"),
        CheckConstraint("computed_tokens >= 0", name="computed_not_negative"),
        CheckConstraint("preemptions >= 0", name="preemptions_not_negative"),
        CheckConstraint("amount_nanousd >= 0", name="amount_not_negative"),
    )

    request_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    project_id: Mapped[UUID]
    api_key_id: Mapped[UUID]
    model: Mapped[str]
    """The model as the client called it: name, `name@3`, `name:prod` or the base model."""
    base_model: Mapped[str]
    adapter_id: Mapped[UUID | None]
    adapter_revision: Mapped[int | None]
    adapter_digest: Mapped[str | None]
    endpoint: Mapped[str]
    streamed: Mapped[bool]
    outcome: Mapped[str]
    error_code: Mapped[str | None]
    estimated: Mapped[bool]
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    computed_tokens: Mapped[int]
    preemptions: Mapped[int]
    price_version_id: Mapped[UUID]
    amount_nanousd: Mapped[int]
    execution_hash: Mapped[str]
    identity: Mapped[dict[str, Any]]
    timings: Mapped[dict[str, Any]]
    time_zone: Mapped[str]
    """The tenant's zone at admission; with `completed_at` it decides the billing period."""
    started_at: Mapped[datetime]
    completed_at: Mapped[datetime]
    recorded_at: Mapped[datetime]
    replica_id: Mapped[str]
    replica_seq: Mapped[int]
    payload_sha256: Mapped[str]
    """Hash of the engine's record, to tell a repeated delivery from a conflicting one."""


Index(
    "ix_usage_records_tenant_id_completed_at",
    UsageRecordRow.tenant_id,
    UsageRecordRow.completed_at.desc(),
    UsageRecordRow.request_id,
)


class UsageRejection(Base):
    """A record that could not be settled, kept whole for an operator instead of being lost."""

    __tablename__ = "usage_rejections"
    __table_args__ = (UniqueConstraint("replica_id", "replica_seq", "payload_sha256"),)

    id: Mapped[Id]
    request_id: Mapped[str]
    reason: Mapped[str]
    detail: Mapped[str]
    replica_id: Mapped[str]
    replica_seq: Mapped[int]
    payload_sha256: Mapped[str]
    payload: Mapped[bytes] = mapped_column(LargeBinary)
    """The engine's record, msgpack; ids and counts only."""
    recorded_at: Mapped[datetime]
