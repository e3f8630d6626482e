"""Tables: price_versions, ledger_heads, ledger_entries, budget_spends.

The ledger is the truth about money and is append-only: triggers and missing grants refuse every
other statement. `budget_spends` is a projection of it, kept in the same transaction. None of
these rows refers to a tenant by foreign key: the books outlive a deleted tenant.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db.base import Base, Id


class PriceVersion(Base):
    """Prices in nano-USD per million tokens from `effective_at` on. Never updated or deleted."""

    __tablename__ = "price_versions"
    __table_args__ = (
        UniqueConstraint("base_model", "target", "effective_at"),
        CheckConstraint("target in ('base', 'adapter')", name="target_known"),
        CheckConstraint("input_nanousd_per_mtok >= 0", name="input_not_negative"),
        CheckConstraint("output_nanousd_per_mtok >= 0", name="output_not_negative"),
        # A cached token never costs more than a full one, so an admission's worst case holds.
        CheckConstraint(
            "cached_input_nanousd_per_mtok between 0 and input_nanousd_per_mtok",
            name="cached_input_is_discount",
        ),
    )

    id: Mapped[Id]
    base_model: Mapped[str]
    target: Mapped[str]
    effective_at: Mapped[datetime]
    input_nanousd_per_mtok: Mapped[int]
    cached_input_nanousd_per_mtok: Mapped[int]
    output_nanousd_per_mtok: Mapped[int]
    created_at: Mapped[datetime]


class LedgerHead(Base):
    """The last `seq` of a tenant's ledger. Locking this row is what orders a tenant's entries."""

    __tablename__ = "ledger_heads"
    __table_args__ = (CheckConstraint("last_seq >= 0", name="last_seq_not_negative"),)

    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    last_seq: Mapped[int]


class LedgerEntry(Base):
    """One transfer from `credit_account` to `debit_account`: balanced by construction.

    `(tenant_id, source, source_id)` is unique, so one event is entered once. `seq` counts a
    tenant's entries from 1 without gaps.
    """

    __tablename__ = "ledger_entries"
    __table_args__ = (
        UniqueConstraint("tenant_id", "seq"),
        UniqueConstraint("tenant_id", "source", "source_id"),
        CheckConstraint("amount_nanousd >= 0", name="amount_not_negative"),
        CheckConstraint("debit_account <> credit_account", name="accounts_differ"),
        CheckConstraint("seq >= 1", name="seq_positive"),
        Index(None, "tenant_id", "effective_at"),
    )

    id: Mapped[Id]
    tenant_id: Mapped[UUID]
    seq: Mapped[int]
    source: Mapped[str]
    source_id: Mapped[str]
    debit_account: Mapped[str]
    credit_account: Mapped[str]
    amount_nanousd: Mapped[int]
    price_version_id: Mapped[UUID | None]
    effective_at: Mapped[datetime]
    recorded_at: Mapped[datetime]


class BudgetSpend(Base):
    """What a scope has spent in a named period: the sum of its ledger entries up to `seq`."""

    __tablename__ = "budget_spends"
    __table_args__ = (
        CheckConstraint("scope_kind in ('tenant', 'project', 'api_key')", name="scope_kind_known"),
        CheckConstraint("spent_nanousd >= 0", name="spent_not_negative"),
    )

    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    scope_kind: Mapped[str] = mapped_column(primary_key=True)
    scope_id: Mapped[UUID] = mapped_column(primary_key=True)
    period: Mapped[str] = mapped_column(primary_key=True)
    spent_nanousd: Mapped[int]
    seq: Mapped[int]
