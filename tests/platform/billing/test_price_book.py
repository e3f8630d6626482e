from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.service import BillingService
from tenora_platform.db.session import Database
from tenora_platform.errors import Conflict, InvalidInput, ServiceUnavailable
from tenora_platform.kit.ids import new_id
from tests.support.clock import FakeClock
from tests.support.usage_records import publish_price


async def publish(
    database: Database,
    clock: FakeClock,
    base_model: str,
    full: int,
    *,
    after_s: float = 0,
    adapter: bool = False,
) -> None:
    async with database.system() as session:
        await BillingService(session, clock).publish_price(
            base_model=base_model,
            target="adapter" if adapter else "base",
            input_nanousd_per_mtok=full,
            cached_input_nanousd_per_mtok=0,
            output_nanousd_per_mtok=0,
            effective_at=clock.now() + timedelta(seconds=after_s),
        )


async def test_the_latest_version_in_force_holds(database: Database) -> None:
    clock, model = FakeClock(), f"base-{new_id()}"
    await publish(database, clock, model, 1)
    await publish(database, clock, model, 2, after_s=60)
    book = PriceBook(database, clock)
    start = clock.now()
    assert (await book.current(model, start)).input_nanousd_per_mtok == 1
    just_before = start + timedelta(seconds=59, microseconds=999_999)
    assert (await book.current(model, just_before)).input_nanousd_per_mtok == 1
    edge = start + timedelta(seconds=60)
    assert (await book.current(model, edge)).input_nanousd_per_mtok == 2


async def test_base_and_adapter_requests_are_priced_apart(database: Database) -> None:
    clock, model = FakeClock(), f"base-{new_id()}"
    await publish(database, clock, model, 1)
    await publish(database, clock, model, 5, adapter=True)
    book = PriceBook(database, clock)
    assert (await book.current(model, clock.now())).input_nanousd_per_mtok == 1
    with_adapter = await book.current(model, clock.now(), target="adapter")
    assert with_adapter.input_nanousd_per_mtok == 5


async def test_without_a_price_work_is_refused(database: Database) -> None:
    clock = FakeClock()
    model = f"base-{new_id()}"
    await publish(database, clock, model, 1, after_s=60)
    with pytest.raises(ServiceUnavailable) as refusal:
        await PriceBook(database, clock).current(model, clock.now())
    assert refusal.value.code == "price_unavailable"


async def test_prices_come_from_memory_until_the_ttl_is_over(database_url: str) -> None:
    database = Database(database_url)
    clock, model = FakeClock(), f"base-{new_id()}"
    await publish(database, clock, model, 1)
    book = PriceBook(database, clock, ttl_s=30)
    await book.current(model, clock.now())
    clock.advance(29)
    await publish(database, clock, model, 2)
    assert (await book.current(model, clock.now())).input_nanousd_per_mtok == 1
    clock.advance(1)
    assert (await book.current(model, clock.now())).input_nanousd_per_mtok == 2
    await database.close()


async def test_versions_are_found_by_id_and_unknown_ids_left_out(database: Database) -> None:
    clock = FakeClock()
    price = await publish_price(database, clock)
    book = PriceBook(database, clock)
    assert await book.by_ids({price.id, new_id()}) == {price.id: price}
    assert await book.by_ids({price.id}) == {price.id: price}


@pytest.mark.parametrize(
    ("per_mtok", "param"),
    [
        ((-1, 0, 0), "input_nanousd_per_mtok"),
        ((1, 2, 0), "cached_input_nanousd_per_mtok"),
        ((1, -1, 0), "cached_input_nanousd_per_mtok"),
        ((1, 1, -1), "output_nanousd_per_mtok"),
        ((10**308, 0, 0), "input_nanousd_per_mtok"),
    ],
)
async def test_bad_prices_are_refused_by_field(
    database: Database, per_mtok: tuple[int, int, int], param: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await publish_price(database, FakeClock(), per_mtok=per_mtok)
    assert refusal.value.param == param


async def test_a_price_does_not_hold_from_the_past_on(database: Database) -> None:
    with pytest.raises(InvalidInput):
        await publish(database, FakeClock(), f"base-{new_id()}", 1, after_s=-1)


async def test_two_prices_of_one_instant_conflict(database: Database) -> None:
    clock, model = FakeClock(), f"base-{new_id()}"
    await publish(database, clock, model, 1)
    with pytest.raises(Conflict):
        await publish(database, clock, model, 2)


@pytest.mark.parametrize(
    "statement",
    [
        "update price_versions set output_nanousd_per_mtok = 0 where id = :id",
        "delete from price_versions where id = :id",
        "truncate price_versions",
    ],
)
async def test_the_database_refuses_to_change_a_version(database: Database, statement: str) -> None:
    price = await publish_price(database, FakeClock())
    parameters = {"id": price.id} if ":id" in statement else {}
    with pytest.raises(DBAPIError, match="append-only"):
        async with database._sessions() as owner:  # even the tables' owner
            await owner.execute(text(statement), parameters)
    with pytest.raises(DBAPIError, match="permission denied"):
        async with database.system() as session:
            await session.execute(text(statement), parameters)
