"""A tenant's view of its usage: pages that neither repeat nor skip, and nobody else's rows."""

from datetime import UTC, datetime, timedelta

import pytest

from tenora_engine.protocol.messages import UsageRecord
from tenora_platform.auth.scope import TenantScope, mint
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.rating import Price
from tenora_platform.db.session import Database
from tenora_platform.errors import InvalidInput, NotFound
from tenora_platform.kit.ids import new_id
from tenora_platform.usage.repository import UsageFilter
from tenora_platform.usage.service import UsageService
from tenora_platform.usage.settlement import SettlementService
from tests.support.clock import FakeClock
from tests.support.usage_records import attribution_of, batch_of, publish_price, usage_record

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


class World:
    """A tenant with seven records, three of which completed in the same millisecond."""

    def __init__(self, database: Database, price: Price) -> None:
        self.database = database
        self.scope: TenantScope = mint(new_id())
        self.attribution = attribution_of(self.scope.tenant_id, price)
        seconds = [0, 1, 2, 2, 2, 3, 4]
        self.records = [
            usage_record(self.attribution, completed_at=NOON + timedelta(seconds=second))
            for second in seconds
        ]
        self.service = UsageService(database)

    async def settle(self, *records: UsageRecord) -> None:
        clock = FakeClock()
        prices = PriceBook(self.database, clock)
        await SettlementService(self.database, prices, clock).settle_batch(batch_of(*records))

    @property
    def latest_first(self) -> list[str]:
        ordered = sorted(self.records, key=lambda one: (-one.completed_at_ms, one.request_id))
        return [record.request_id for record in ordered]


@pytest.fixture
async def world(database: Database) -> World:
    world = World(database, await publish_price(database, FakeClock()))
    await world.settle(*world.records)
    return world


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_together_are_all_records_latest_first(world: World, limit: int) -> None:
    seen: list[str] = []
    after = None
    while True:
        page = await world.service.list_records(world.scope, limit=limit, after=after)
        assert len(page.records) <= limit
        seen += [row.request_id for row in page.records]
        after = page.next_cursor
        if after is None:
            break
    assert seen == world.latest_first


async def test_a_record_that_completes_meanwhile_does_not_shift_a_page(world: World) -> None:
    first = await world.service.list_records(world.scope, limit=3)
    await world.settle(usage_record(world.attribution, completed_at=NOON + timedelta(hours=1)))
    second = await world.service.list_records(world.scope, limit=100, after=first.next_cursor)
    ids = [row.request_id for row in (*first.records, *second.records)]
    assert ids == world.latest_first


async def test_filters_narrow_and_the_end_is_excluded(world: World) -> None:
    where = UsageFilter(start=NOON + timedelta(seconds=1), end=NOON + timedelta(seconds=3))
    page = await world.service.list_records(world.scope, where)
    assert len(page.records) == 4
    assert (await world.service.totals(world.scope, where)).num_requests == 4
    by_key = UsageFilter(api_key_id=world.attribution.api_key_id, model=world.attribution.model)
    assert (await world.service.totals(world.scope, by_key)).num_requests == 7
    assert (await world.service.totals(world.scope, UsageFilter(project_id=new_id()))) == (
        0,
        0,
        0,
        0,
        0,
    )


async def test_totals_are_the_sums_of_the_records(world: World) -> None:
    totals = await world.service.totals(world.scope)
    page = await world.service.list_records(world.scope)
    assert totals.prompt_tokens == sum(row.prompt_tokens for row in page.records) == 700
    assert totals.completion_tokens == 70
    assert totals.amount_nanousd == sum(row.amount_nanousd for row in page.records)


async def test_another_tenant_sees_nothing(world: World) -> None:
    stranger = mint(new_id())
    assert (await world.service.list_records(stranger)).records == []
    with pytest.raises(NotFound):
        await world.service.get_record(stranger, world.records[0].request_id)
    row = await world.service.get_record(world.scope, world.records[0].request_id)
    assert row.tenant_id == world.scope.tenant_id


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_limit_outside_its_bounds_is_refused(world: World, limit: int) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await world.service.list_records(world.scope, limit=limit)
    assert refusal.value.param == "limit"
