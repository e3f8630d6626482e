"""Tables of tenants, their keys, limits and adapters.

Revision: 0001, the first. Names of constraints follow the convention in `db.base`.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Create the tables, referenced ones first."""
    _create_tenants()
    _create_projects()
    _create_api_keys()
    _create_api_key_secrets()
    _create_operators()
    _create_quota_limits()
    _create_adapters()
    _create_adapter_revisions()


def downgrade() -> None:
    """Drop the tables, referring ones first."""
    for table in (
        "adapter_revisions",
        "adapters",
        "quota_limits",
        "operators",
        "api_key_secrets",
        "api_keys",
        "projects",
        "tenants",
    ):
        op.drop_table(table)


def _create_tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status in ('active', 'suspended')", name="status_known"),
        sa.UniqueConstraint("slug"),
    )


def _create_projects() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status in ('active', 'suspended')", name="status_known"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("tenant_id", "id"),
        sa.UniqueConstraint("tenant_id", "slug"),
    )


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("tenant_id", "id"),
    )
    op.create_index("ix_api_keys_project_id", "api_keys", ["project_id"])


def _create_api_key_secrets() -> None:
    op.create_table(
        "api_key_secrets",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=False),
        sa.Column("secret_sha256", sa.Text(), nullable=False),
        sa.Column("redacted", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "api_key_id"], ["api_keys.tenant_id", "api_keys.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("secret_sha256"),
    )
    op.create_index("ix_api_key_secrets_api_key_id", "api_key_secrets", ["api_key_id"])


def _create_operators() -> None:
    op.create_table(
        "operators",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status in ('active', 'suspended')", name="status_known"),
        sa.CheckConstraint("email = lower(email)", name="email_lower"),
        sa.UniqueConstraint("email"),
    )


def _create_quota_limits() -> None:
    op.create_table(
        "quota_limits",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("period", sa.Text(), nullable=True),
        sa.Column("burst", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(kind = 'budget') = (period is not null)", name="period_of_budget"),
        sa.CheckConstraint(
            "kind in ('requests_per_minute', 'tokens_per_minute', 'concurrency', 'budget')",
            name="kind_known",
        ),
        sa.CheckConstraint("period in ('day', 'month')", name="period_known"),
        sa.CheckConstraint("burst between 1 and value", name="burst_in_range"),
        sa.CheckConstraint("scope_kind <> 'tenant' or scope_id = tenant_id", name="own_tenant"),
        sa.CheckConstraint(
            "scope_kind in ('tenant', 'project', 'api_key')", name="scope_kind_known"
        ),
        sa.CheckConstraint("value >= 0", name="value_not_negative"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE"),
        sa.UniqueConstraint(
            "tenant_id",
            "scope_kind",
            "scope_id",
            "kind",
            "period",
            postgresql_nulls_not_distinct=True,
        ),
    )


def _create_adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("tenant_id", "id"),
        sa.UniqueConstraint("tenant_id", "name"),
    )


def _create_adapter_revisions() -> None:
    op.create_table(
        "adapter_revisions",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("adapter_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("report", JSONB(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("max_rank", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'ready') = (ready_at is not null)", name="ready_has_instant"),
        sa.CheckConstraint("status <> 'ready' or digest is not null", name="ready_has_digest"),
        sa.CheckConstraint(
            "status in ('inspecting', 'probing', 'ready', 'rejected')", name="status_known"
        ),
        sa.CheckConstraint("max_rank >= 0", name="rank_not_negative"),
        sa.CheckConstraint("revision >= 1", name="revision_positive"),
        sa.CheckConstraint("size_bytes >= 0", name="size_not_negative"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("adapter_id", "revision"),
    )
