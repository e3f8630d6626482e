"""The ledger: gapless numbers, budgets that follow, and a database that refuses to forget."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tenora_platform.billing.ledger import BudgetLedger, BudgetProjection, Ledger, UsageCharge
from tenora_platform.billing.models import LedgerEntry
from tenora_platform.billing.service import BillingService
from tenora_platform.db.session import Database
from tenora_platform.kit.ids import new_id
from tests.support.clock import FakeClock

INSERT = text(
    "insert into ledger_entries (id, tenant_id, seq, source, source_id, debit_account, "
    "credit_account, amount_nanousd, effective_at, recorded_at) "
    "values (:id, :tenant_id, :seq, 'usage', :source_id, :debit, :credit, :amount, now(), now())"
)


def charge_of(
    tenant_id: UUID, amount_nanousd: int, *, request_id: str | None = None, key: UUID | None = None
) -> UsageCharge:
    return UsageCharge(
        tenant_id=tenant_id,
        project_id=tenant_id,
        api_key_id=key or tenant_id,
        request_id=request_id or str(new_id()),
        amount_nanousd=amount_nanousd,
        price_version_id=new_id(),
        completed_at=datetime(2026, 11, 30, 23, 30, tzinfo=UTC),
        time_zone="Europe/Vienna",
    )


async def book(database: Database, charges: Sequence[UsageCharge]) -> list[BudgetProjection]:
    async with database.system() as session:
        ledger = Ledger(session, FakeClock())
        await ledger.lock({charge.tenant_id for charge in charges})
        await ledger.book(charges)
        return await ledger.project(charges)


async def entries(database: Database, tenant_id: UUID) -> Sequence[LedgerEntry]:
    async with database.system() as session:
        query = select(LedgerEntry).where(LedgerEntry.tenant_id == tenant_id)
        return (await session.scalars(query.order_by(LedgerEntry.seq))).all()


async def test_entries_are_numbered_from_one_without_gaps(database: Database) -> None:
    ours, theirs = new_id(), new_id()
    await book(database, [charge_of(ours, 1), charge_of(theirs, 2), charge_of(ours, 3)])
    await book(database, [charge_of(ours, 0)])
    booked = await entries(database, ours)
    assert [(entry.seq, entry.amount_nanousd) for entry in booked] == [(1, 1), (2, 3), (3, 0)]
    assert {entry.debit_account for entry in booked} == {f"tenant:{ours}:receivable"}
    assert {entry.credit_account for entry in booked} == {"revenue:usage"}
    assert [entry.seq for entry in await entries(database, theirs)] == [1]


async def test_budgets_follow_in_the_tenants_local_periods(database: Database) -> None:
    tenant_id, other_key = new_id(), new_id()
    first = charge_of(tenant_id, 5)
    second = charge_of(tenant_id, 7, key=other_key)
    projections = await book(database, [first, second])
    found = {(one.scope_kind, one.scope_id, one.period_name): one for one in projections}
    # 23:30 UTC on 30 November is 1 December in Vienna.
    assert {name for _, _, name in found} == {"2026-12", "2026-12-01"}
    tenant_month = found["tenant", str(tenant_id), "2026-12"]
    assert (tenant_month.committed_nanousd, tenant_month.seq) == (12, 2)
    assert set(tenant_month.covered_request_ids) == {first.request_id, second.request_id}
    key_day = found["api_key", str(other_key), "2026-12-01"]
    assert (key_day.committed_nanousd, key_day.covered_request_ids) == (7, (second.request_id,))


async def test_the_seq_of_a_budget_grows_with_each_entry(database: Database) -> None:
    tenant_id = new_id()
    first = await book(database, [charge_of(tenant_id, 5)])
    second = await book(database, [charge_of(tenant_id, 5)])
    assert {one.seq for one in first} == {1}
    assert {(one.seq, one.committed_nanousd) for one in second} == {(2, 10)}


async def test_committed_is_what_was_booked(database: Database) -> None:
    tenant_id = new_id()
    budgets = BudgetLedger(database)
    place = ("tenant", str(tenant_id), "2026-12")
    assert await budgets.committed(tenant_id, "tenant", *place[1:]) == (0, 0)
    await book(database, [charge_of(tenant_id, 5), charge_of(tenant_id, 6)])
    assert await budgets.committed(tenant_id, "tenant", *place[1:]) == (11, 2)


async def test_the_total_of_an_interval_excludes_its_end(database: Database) -> None:
    tenant_id = new_id()
    charge = charge_of(tenant_id, 5)
    await book(database, [charge])
    async with database.system() as session:
        billing = BillingService(session, FakeClock())
        start = datetime(2026, 11, 1, tzinfo=UTC)
        at = charge.completed_at
        later = datetime(2027, 1, 1, tzinfo=UTC)
        assert await billing.ledger_total(tenant_id, start=start, end=later) == 5
        assert await billing.ledger_total(tenant_id, start=start, end=at) == 0
        assert await billing.ledger_total(tenant_id, start=at, end=later) == 5


async def test_one_event_is_entered_once(database: Database) -> None:
    charge = charge_of(new_id(), 5)
    await book(database, [charge])
    with pytest.raises(IntegrityError, match="source"):
        await book(database, [charge])


async def test_ids_that_look_alike_when_joined_are_two_events(database: Database) -> None:
    """Case E24: the key is typed columns, never a joined string."""
    tenant_id = new_id()
    async with database.system() as session:
        for seq, (source, source_id) in enumerate([("a", "b:c"), ("a:b", "c")], start=1):
            statement = text(str(INSERT).replace("'usage'", ":source"))
            await session.execute(
                statement,
                {**row(tenant_id, seq=seq, source_id=source_id), "source": source},
            )
    assert len(await entries(database, tenant_id)) == 2


def row(tenant_id: UUID, **changes: object) -> dict[str, object]:
    plain = {
        "id": new_id(),
        "tenant_id": tenant_id,
        "seq": 1,
        "source_id": new_id().hex,
        "debit": "a",
        "credit": "b",
        "amount": 1,
    }
    return {**plain, **changes}


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"amount": -1}, "amount_not_negative"),
        ({"debit": "b"}, "accounts_differ"),
        ({"seq": 0}, "seq_positive"),
    ],
)
async def test_the_database_refuses_an_impossible_entry(
    database: Database, changes: dict[str, object], constraint: str
) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        async with database.system() as session:
            await session.execute(INSERT, row(new_id(), **changes))


@pytest.mark.parametrize(
    "statement",
    [
        "update ledger_entries set amount_nanousd = 0 where tenant_id = :id",
        "delete from ledger_entries where tenant_id = :id",
        "truncate ledger_entries",
    ],
)
async def test_the_database_refuses_to_change_or_forget_an_entry(
    database: Database, statement: str
) -> None:
    tenant_id = new_id()
    await book(database, [charge_of(tenant_id, 5)])
    parameters = {"id": tenant_id} if ":id" in statement else {}
    with pytest.raises(DBAPIError, match="append-only"):
        async with database._sessions() as owner:  # even the tables' owner
            await owner.execute(text(statement), parameters)
    with pytest.raises(DBAPIError, match="permission denied"):
        async with database.system() as session:
            await session.execute(text(statement), parameters)
    assert [entry.amount_nanousd for entry in await entries(database, tenant_id)] == [5]
