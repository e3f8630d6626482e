"""Table quota_limits: what a tenant, a project or an API key may use. Counters are not here."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db.base import Base, Id


class QuotaLimit(Base):
    """One limit on one scope. `value` is a count, or nano-USD where `kind` is `budget`."""

    __tablename__ = "quota_limits"
    __table_args__ = (
        UniqueConstraint(
            "tenant_id",
            "scope_kind",
            "scope_id",
            "kind",
            "period",
            postgresql_nulls_not_distinct=True,
        ),
        CheckConstraint("scope_kind in ('tenant', 'project', 'api_key')", name="scope_kind_known"),
        CheckConstraint(
            "kind in ('requests_per_minute', 'tokens_per_minute', 'concurrency', 'budget')",
            name="kind_known",
        ),
        CheckConstraint("period in ('day', 'month')", name="period_known"),
        CheckConstraint("(kind = 'budget') = (period is not null)", name="period_of_budget"),
        CheckConstraint("value >= 0", name="value_not_negative"),
        CheckConstraint("burst between 1 and value", name="burst_in_range"),
        CheckConstraint("scope_kind <> 'tenant' or scope_id = tenant_id", name="own_tenant"),
    )

    id: Mapped[Id]
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    scope_kind: Mapped[str]
    scope_id: Mapped[UUID]
    kind: Mapped[str]
    value: Mapped[int]
    period: Mapped[str | None]
    burst: Mapped[int | None]
    """How much of a rate may pass in one instant; null is all of `value`."""
    updated_at: Mapped[datetime]
