"""Tables of money and usage. No foreign key leads to a tenant: the books outlive it.

Revision: 0002, after 0001.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Create the tables, referenced ones first."""
    _create_price_versions()
    _create_ledger_heads()
    _create_ledger_entries()
    _create_budget_spends()
    _create_usage_records()
    _create_usage_rejections()


def downgrade() -> None:
    """Drop the tables, referring ones first."""
    for table in (
        "usage_rejections",
        "usage_records",
        "budget_spends",
        "ledger_entries",
        "ledger_heads",
        "price_versions",
    ):
        op.drop_table(table)


def _create_price_versions() -> None:
    op.create_table(
        "price_versions",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("effective_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input_nanousd_per_mtok", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_nanousd_per_mtok", sa.BigInteger(), nullable=False),
        sa.Column("output_nanousd_per_mtok", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("target in ('base', 'adapter')", name="target_known"),
        sa.CheckConstraint(
            "cached_input_nanousd_per_mtok between 0 and input_nanousd_per_mtok",
            name="cached_input_is_discount",
        ),
        sa.CheckConstraint("input_nanousd_per_mtok >= 0", name="input_not_negative"),
        sa.CheckConstraint("output_nanousd_per_mtok >= 0", name="output_not_negative"),
        sa.UniqueConstraint("base_model", "target", "effective_at"),
    )


def _create_ledger_heads() -> None:
    op.create_table(
        "ledger_heads",
        sa.Column("tenant_id", sa.Uuid(), primary_key=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("last_seq >= 0", name="last_seq_not_negative"),
    )


def _create_ledger_entries() -> None:
    op.create_table(
        "ledger_entries",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_id", sa.Text(), nullable=False),
        sa.Column("debit_account", sa.Text(), nullable=False),
        sa.Column("credit_account", sa.Text(), nullable=False),
        sa.Column("amount_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("price_version_id", sa.Uuid(), nullable=True),
        sa.Column("effective_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("amount_nanousd >= 0", name="amount_not_negative"),
        sa.CheckConstraint("debit_account <> credit_account", name="accounts_differ"),
        sa.CheckConstraint("seq >= 1", name="seq_positive"),
        sa.UniqueConstraint("tenant_id", "seq"),
        sa.UniqueConstraint("tenant_id", "source", "source_id"),
    )
    op.create_index(
        "ix_ledger_entries_tenant_id_effective_at", "ledger_entries", ["tenant_id", "effective_at"]
    )


def _create_budget_spends() -> None:
    op.create_table(
        "budget_spends",
        sa.Column("tenant_id", sa.Uuid(), primary_key=True),
        sa.Column("scope_kind", sa.Text(), primary_key=True),
        sa.Column("scope_id", sa.Uuid(), primary_key=True),
        sa.Column("period", sa.Text(), primary_key=True),
        sa.Column("spent_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "scope_kind in ('tenant', 'project', 'api_key')", name="scope_kind_known"
        ),
        sa.CheckConstraint("spent_nanousd >= 0", name="spent_not_negative"),
    )


def _create_usage_records() -> None:
    op.create_table(
        "usage_records",
        sa.Column("request_id", sa.Text(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("adapter_id", sa.Uuid(), nullable=True),
        sa.Column("adapter_revision", sa.BigInteger(), nullable=True),
        sa.Column("adapter_digest", sa.Text(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("computed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("preemptions", sa.BigInteger(), nullable=False),
        sa.Column("price_version_id", sa.Uuid(), nullable=False),
        sa.Column("amount_nanousd", sa.BigInteger(), nullable=False),
        sa.Column("execution_hash", sa.Text(), nullable=False),
        sa.Column("identity", JSONB(), nullable=False),
        sa.Column("timings", JSONB(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("replica_id", sa.Text(), nullable=False),
        sa.Column("replica_seq", sa.BigInteger(), nullable=False),
        sa.Column("payload_sha256", sa.Text(), nullable=False),
        sa.CheckConstraint("(outcome = 'error') = (error_code is not null)", name="error_has_code"),
        sa.CheckConstraint(
            "outcome in ('stop', 'length', 'aborted', 'error')", name="outcome_known"
        ),
        sa.CheckConstraint("amount_nanousd >= 0", name="amount_not_negative"),
        sa.CheckConstraint("cached_tokens between 0 and prompt_tokens", name="cached_is_part"),
        sa.CheckConstraint("completion_tokens >= 0", name="completion_not_negative"),
        sa.CheckConstraint("computed_tokens >= 0", name="computed_not_negative"),
        sa.CheckConstraint("preemptions >= 0", name="preemptions_not_negative"),
        sa.CheckConstraint("prompt_tokens >= 0", name="prompt_not_negative"),
    )
    op.create_index(
        "ix_usage_records_tenant_id_completed_at",
        "usage_records",
        ["tenant_id", sa.literal_column("completed_at DESC"), "request_id"],
    )


def _create_usage_rejections() -> None:
    op.create_table(
        "usage_rejections",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("replica_id", sa.Text(), nullable=False),
        sa.Column("replica_seq", sa.BigInteger(), nullable=False),
        sa.Column("payload_sha256", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("replica_id", "replica_seq", "payload_sha256"),
    )
