"""What the books say about a tenant, read with SQL of our own to check the product's."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tenora_platform.db.session import Database

_LEDGER = text("select seq, source_id, amount_nanousd from ledger_entries where tenant_id = :id")
_RECORDS = text("select request_id, amount_nanousd from usage_records where tenant_id = :id")
_BUDGETS = text(
    "select scope_kind, scope_id, period, spent_nanousd from budget_spends where tenant_id = :id"
)


@dataclass(frozen=True)
class Books:
    """Ledger amounts and record amounts by request id, ledger numbers, and budgets."""

    ledger: dict[str, int]
    records: dict[str, int]
    seqs: list[int]
    budgets: dict[tuple[str, UUID, str], int]

    def assert_consistent(self) -> None:
        """One entry a record with its amount, gapless numbers, and budgets that add up to both."""
        assert self.ledger == self.records
        assert self.seqs == list(range(1, len(self.ledger) + 1))
        total = sum(self.ledger.values())
        sums: dict[tuple[str, int], int] = {}
        for (scope_kind, _, period), spent in self.budgets.items():
            key = (scope_kind, len(period))
            sums[key] = sums.get(key, 0) + spent
        assert set(sums.values()) <= {total}
        assert len(sums) == (6 if self.ledger else 0)


async def read_books(database: Database, tenant_id: UUID) -> Books:
    """Everything that is booked for a tenant."""
    parameters = {"id": tenant_id}
    async with database.system() as session:
        entries = (await session.execute(_LEDGER, parameters)).all()
        records = (await session.execute(_RECORDS, parameters)).all()
        budgets = (await session.execute(_BUDGETS, parameters)).all()
    return Books(
        ledger={row.source_id: row.amount_nanousd for row in entries},
        records={row.request_id: row.amount_nanousd for row in records},
        seqs=sorted(row.seq for row in entries),
        budgets={(row.scope_kind, row.scope_id, row.period): row.spent_nanousd for row in budgets},
    )
