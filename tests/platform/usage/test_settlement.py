"""Settlement against a real database: exactly once, whatever is delivered how often."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import text

from tenora_engine.protocol.messages import ExecutionIdentity, Outcome, UsageRecord
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.rating import Price
from tenora_platform.db.session import Database
from tenora_platform.kit.ids import new_id
from tenora_platform.tenants.provisioning import provision_tenant
from tenora_platform.tenants.service import TenantService
from tenora_platform.usage.settlement import Settlement, SettlementService
from tests.support.books import Books, read_books
from tests.support.clock import FakeClock
from tests.support.usage_records import attribution_of, batch_of, publish_price, usage_record

PER_TOKEN = 1_000_000


class World:
    """A tenant, a price of 10, 1 and 20 nano-USD per token, and two settling workers."""

    def __init__(self, database: Database, price: Price) -> None:
        self.database = database
        self.price = price
        self.tenant_id = new_id()
        self.attribution = attribution_of(self.tenant_id, price)
        clock = FakeClock()
        self.workers = [
            SettlementService(database, PriceBook(database, clock), clock) for _ in range(2)
        ]

    async def settle(self, *records: UsageRecord) -> Settlement:
        return await self.workers[0].settle_batch(batch_of(*records))

    async def books(self, tenant_id: UUID | None = None) -> Books:
        books = await read_books(self.database, tenant_id or self.tenant_id)
        books.assert_consistent()
        return books


@pytest.fixture
async def world(database: Database) -> World:
    per_mtok = (10 * PER_TOKEN, 1 * PER_TOKEN, 20 * PER_TOKEN)
    return World(database, await publish_price(database, FakeClock(), per_mtok=per_mtok))


async def test_a_record_becomes_one_row_one_entry_and_six_budgets(world: World) -> None:
    record = usage_record(
        world.attribution, prompt_tokens=100, cached_prompt_tokens=96, completion_tokens=10
    )
    settlement = await world.settle(record)
    assert (settlement.num_booked, settlement.num_duplicates) == (1, 0)
    (request,) = settlement.requests
    assert request.cost_nanousd == 336
    assert (request.prompt_tokens, request.completion_tokens) == (100, 10)
    books = await world.books()
    assert books.ledger == {record.request_id: 336}
    assert {key[2] for key in books.budgets} == {"2026-11", "2026-11-29"}
    assert len(settlement.projections) == 6
    for projection in settlement.projections:
        assert (projection.committed_nanousd, projection.seq) == (336, 1)
        assert projection.covered_request_ids == (record.request_id,)


async def test_a_row_keeps_what_its_cost_can_be_recomputed_from(world: World) -> None:
    record = usage_record(world.attribution, prompt_tokens=7, completion_tokens=3)
    await world.settle(record)
    query = text("select * from usage_records where request_id = :id")
    async with world.database.system() as session:
        row = (await session.execute(query, {"id": record.request_id})).mappings().one()
    assert row["price_version_id"] == world.price.id
    assert row["amount_nanousd"] == 7 * 10 + 3 * 20
    assert row["model"] == world.price.base_model
    assert row["execution_hash"] == record.execution_hash
    assert msgspec.convert(row["identity"], ExecutionIdentity) == record.identity
    assert row["timings"]["total_ms"] == 12.5
    assert row["completed_at"] == datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("outcome", "amount"), [("stop", 1200), ("length", 1200), ("aborted", 1200), ("error", 0)]
)
async def test_every_outcome_leaves_one_entry(world: World, outcome: Outcome, amount: int) -> None:
    record = usage_record(world.attribution, outcome=outcome)
    await world.settle(record)
    assert (await world.books()).ledger == {record.request_id: amount}


async def test_a_repeated_delivery_changes_nothing_and_reports_the_same(world: World) -> None:
    records = [usage_record(world.attribution) for _ in range(3)]
    first = await world.settle(*records)
    before = await world.books()
    second = await world.settle(*reversed(records))
    third = await world.settle(records[0], records[0], usage_record(world.attribution))
    assert (second.num_booked, second.num_duplicates) == (0, 3)
    assert (third.num_booked, third.num_duplicates) == (1, 2)
    assert {one.request_id for one in second.requests} == {one.request_id for one in first.requests}
    stands = {(one.scope_id, one.period_name): one.committed_nanousd for one in first.projections}
    again = {(one.scope_id, one.period_name): one.committed_nanousd for one in second.projections}
    assert stands == again
    after = await world.books()
    assert {key: after.ledger[key] for key in before.ledger} == before.ledger
    assert len(after.ledger) == 4


async def test_of_two_records_of_one_request_the_first_stays_and_the_second_is_reported(
    world: World,
) -> None:
    first = usage_record(world.attribution, request_id=str(new_id()))
    other_payload = msgspec.structs.replace(first, completed_at_ms=first.completed_at_ms + 1)
    await world.settle(first)
    settlement = await world.settle(other_payload)
    assert settlement.requests == ()
    assert [one.reason for one in settlement.rejections] == ["conflict"]
    assert (await world.books()).ledger == {first.request_id: 1200}
    await world.settle(other_payload)
    assert await rejections(world, first.request_id) == ["conflict"]


async def test_two_records_of_one_request_in_one_batch_conflict_too(world: World) -> None:
    first = usage_record(world.attribution)
    second = msgspec.structs.replace(first, completed_at_ms=first.completed_at_ms + 1)
    settlement = await world.settle(first, second)
    assert settlement.num_booked == 1
    assert [one.record.seq for one in settlement.rejections] == [2]
    assert (await world.books()).ledger == {first.request_id: 1200}


async def test_an_id_of_another_tenants_request_is_a_conflict(world: World) -> None:
    ours = usage_record(world.attribution)
    stranger = new_id()
    theirs = usage_record(attribution_of(stranger, world.price), request_id=ours.request_id)
    await world.settle(ours)
    settlement = await world.settle(theirs)
    assert [one.reason for one in settlement.rejections] == ["conflict"]
    assert (await world.books(stranger)).ledger == {}


async def rejections(world: World, request_id: str) -> list[str]:
    async with world.database.system() as session:
        query = text("select reason from usage_rejections where request_id = :id")
        return list(await session.scalars(query, {"id": request_id}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attribution": b"\xc1"}, "unreadable_attribution"),
        ({"usage": {"prompt_tokens": 1, "cached_prompt_tokens": 2}}, "impossible_counts"),
        ({"usage": {"prompt_tokens": 2**63}}, "unstorable"),
        ({"execution_hash": "nul\0"}, "unstorable"),
        ({"completed_at_ms": 10**18}, "unstorable"),
        ({"outcome": "error", "error_code": None}, "unstorable"),
    ],
)
async def test_a_bad_record_is_set_aside_and_the_others_are_booked(
    world: World, changes: dict[str, object], reason: str
) -> None:
    good = [usage_record(world.attribution) for _ in range(4)]
    plain = usage_record(world.attribution)
    usage = changes.pop("usage", None)
    bad = msgspec.structs.replace(plain, **changes)
    if isinstance(usage, dict):
        bad = msgspec.structs.replace(bad, usage=msgspec.structs.replace(plain.usage, **usage))
    settlement = await world.settle(*good[:2], bad, *good[2:])
    assert [one.reason for one in settlement.rejections] == [reason]
    assert await rejections(world, bad.request_id) == [reason]
    assert (await world.books()).ledger == {one.request_id: 1200 for one in good}


@pytest.mark.parametrize("broken", ["price", "zone"])
async def test_an_envelope_that_cannot_be_rated_is_set_aside(world: World, broken: str) -> None:
    attribution = (
        msgspec.structs.replace(world.attribution, price_version_id=new_id())
        if broken == "price"
        else msgspec.structs.replace(world.attribution, time_zone="Mars/Olympus")
    )
    settlement = await world.settle(usage_record(attribution))
    expected = "unknown_price" if broken == "price" else "unreadable_attribution"
    assert [one.reason for one in settlement.rejections] == [expected]
    assert (await world.books()).ledger == {}


async def test_a_rejected_record_is_kept_whole(world: World) -> None:
    bad = usage_record(msgspec.structs.replace(world.attribution, price_version_id=new_id()))
    await world.settle(bad)
    async with world.database.system() as session:
        payload = await session.scalar(
            text("select payload from usage_rejections where request_id = :id"),
            {"id": bad.request_id},
        )
    assert msgspec.msgpack.decode(payload, type=UsageRecord) == bad


async def test_the_records_of_a_deleted_tenant_are_settled(world: World) -> None:
    clock = FakeClock()
    made = await provision_tenant(world.database, clock, slug=f"t-{new_id().hex}", name="Gone")
    attribution = attribution_of(
        made.tenant.id, world.price, project_id=made.project.id, api_key_id=made.api_key.id
    )
    before, after = usage_record(attribution), usage_record(attribution)
    await world.settle(before)
    async with world.database.system() as session:
        await TenantService(session, clock).delete_tenant(made.tenant.id)
    await world.settle(after)
    assert set((await world.books(made.tenant.id)).ledger) == {before.request_id, after.request_id}


async def test_workers_that_settle_many_tenants_at_once_neither_deadlock_nor_double(
    world: World,
) -> None:
    attributions = [attribution_of(new_id(), world.price) for _ in range(5)]
    records = [usage_record(one) for one in attributions for _ in range(4)]
    rounds = [records, records[::-1], records[1::2] + records[::2]] * 2
    settlements = await asyncio.gather(
        *(
            world.workers[number % 2].settle_batch(batch_of(*round_))
            for number, round_ in enumerate(rounds)
        )
    )
    assert sum(one.num_booked for one in settlements) == len(records)
    for attribution in attributions:
        assert len((await world.books(attribution.tenant_id)).ledger) == 4


async def test_a_retry_over_a_period_edge_counts_in_the_first_period_only(world: World) -> None:
    """Cases E16 and E24: the period is that of `completed_at`, in the tenant's zone."""
    edge = datetime(2026, 11, 30, 23, 0, tzinfo=UTC)  # midnight in Vienna
    attribution = msgspec.structs.replace(world.attribution, time_zone="Europe/Vienna")
    before = usage_record(attribution, completed_at=edge.replace(hour=22, minute=59, second=59))
    after = usage_record(attribution, completed_at=edge)
    await world.settle(before)
    await world.settle(before, after)
    budgets = (await world.books()).budgets
    tenant = {name: spent for (kind, _, name), spent in budgets.items() if kind == "tenant"}
    assert tenant == {"2026-11-30": 1200, "2026-11": 1200, "2026-12-01": 1200, "2026-12": 1200}


async def test_an_empty_batch_settles_to_nothing(world: World) -> None:
    assert await world.settle() == Settlement()
