"""Property: whatever is delivered, in whatever order and how often, the books are the records'.

Each example is one tenant of its own in a shared database, settled by two workers at once.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenora_engine.protocol.messages import Outcome
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.rating import Price, rate_outcome
from tenora_platform.db.session import Database
from tenora_platform.kit.ids import new_id
from tenora_platform.kit.periods import period_name
from tenora_platform.usage.settlement import SettlementService
from tests.support.books import read_books
from tests.support.clock import FakeClock
from tests.support.usage_records import attribution_of, batch_of, publish_price, usage_record

OUTCOMES: list[Outcome] = ["stop", "length", "aborted", "error"]
ZONES = ["UTC", "Pacific/Tongatapu", "America/St_Johns", "Europe/Vienna", "Africa/Cairo"]
# Around a month's end, a leap day and the clock changes of those zones.
EDGES = [
    datetime(2028, 2, 29, 12, tzinfo=UTC),
    datetime(2026, 10, 31, 23, tzinfo=UTC),
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[list[int]]]:
    """A time zone, what each request used, and batches that deliver each request at least once."""
    count = draw(st.integers(1, 8))
    facts: list[dict[str, Any]] = []
    for _ in range(count):
        prompt = draw(st.integers(0, 5000))
        facts.append(
            {
                "outcome": draw(st.sampled_from(OUTCOMES)),
                "prompt_tokens": prompt,
                "cached_prompt_tokens": draw(st.integers(0, prompt)),
                "completion_tokens": draw(st.integers(0, 3000)),
                "completed_at": draw(st.sampled_from(EDGES))
                + timedelta(seconds=draw(st.integers(-86_400, 86_400))),
            }
        )
    order = draw(st.permutations(list(range(count)) * draw(st.integers(1, 3))))
    size = draw(st.integers(1, len(order)))
    batches = [list(order[start : start + size]) for start in range(0, len(order), size)]
    return draw(st.sampled_from(ZONES)), facts, batches


@pytest.fixture
async def price(database: Database) -> Price:
    # Rates that leave a fraction of a nano-USD in nearly every product.
    return await publish_price(database, FakeClock(), per_mtok=(333_333, 77_777, 1_234_567))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=deliveries())
async def test_the_books_are_the_sum_of_rated_records(
    database: Database,
    price: Price,
    case: tuple[str, list[dict[str, Any]], list[list[int]]],
) -> None:
    time_zone, facts, batches = case
    attribution = attribution_of(new_id(), price, time_zone=time_zone)
    records = [usage_record(attribution, **fact) for fact in facts]
    clock = FakeClock()
    workers = [SettlementService(database, PriceBook(database, clock), clock) for _ in range(2)]
    settlements = await asyncio.gather(
        *(
            workers[number % 2].settle_batch(batch_of(*(records[index] for index in batch)))
            for number, batch in enumerate(batches)
        )
    )
    expected = {one.request_id: rate_outcome(one.outcome, one.usage, price) for one in records}
    books = await read_books(database, attribution.tenant_id)
    books.assert_consistent()
    assert books.ledger == expected
    assert sum(one.num_booked for one in settlements) == len(records)
    by_day: dict[str, int] = {}
    for record, fact in zip(records, facts, strict=True):
        day = period_name("day", fact["completed_at"], time_zone)
        by_day[day] = by_day.get(day, 0) + expected[record.request_id]
    spent = {name: one for (kind, _, name), one in books.budgets.items() if kind == "tenant"}
    assert {name: one for name, one in spent.items() if len(name) == 10} == by_day
