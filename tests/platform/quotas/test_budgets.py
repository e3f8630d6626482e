"""Money: the ledger's projection plus holds, exact under concurrency, loss and disorder."""

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from tenora_platform.errors import ServiceUnavailable
from tenora_platform.quotas.errors import QuotaExceeded
from tests.platform.quotas.world import World


async def admitted(world: World, request_id: str, cost: int) -> bool:
    try:
        await world.reserve(request_id, cost=cost)
    except QuotaExceeded:
        return False
    return True


async def test_thousand_concurrent_reserves_take_a_budget_of_100_exactly(world: World) -> None:
    world.limits = (world.limit("budget", 100),)
    verdicts = await asyncio.gather(*(admitted(world, f"r{i}", 1) for i in range(1000)))
    assert sum(verdicts) == 100
    assert await world.used("budget") == 100


async def test_parallel_first_requests_of_a_tenant_never_overspend(world: World) -> None:
    """Budget 1,000 and ten requests of at most 400 each: two run."""
    world.limits = (world.limit("budget", 1000, "tenant"),)
    verdicts = await asyncio.gather(*(admitted(world, f"r{i}", 400) for i in range(10)))
    assert sum(verdicts) == 2


async def test_remaining_counts_committed_and_held(world: World) -> None:
    world.ledger.amounts["project", str(world.project_id), "2026-11"] = (600, 9)
    world.limits = (world.limit("budget", 1000),)
    await world.reserve(cost=300)
    with pytest.raises(QuotaExceeded) as caught:
        await world.reserve(cost=101)
    binding = caught.value.binding
    assert (binding.committed, binding.held, binding.remaining) == (600, 300, 100)
    assert binding.period_name == "2026-11"
    assert await admitted(world, "fits", 100)


async def test_settled_cost_is_held_until_the_projection_covers_it(world: World) -> None:
    world.limits = (world.limit("budget", 1000),)
    await world.reserve("r1", cost=400)
    await world.settle("r1", cost=150)
    assert await world.used("budget") == 150
    await world.project(150, 1, ["r1"])
    assert await world.used("budget") == 150


async def test_projection_before_settlement_counts_once(world: World) -> None:
    world.limits = (world.limit("budget", 1000),)
    await world.reserve("r1", cost=400)
    await world.project(150, 1, ["r1"])
    assert await world.used("budget") == 150
    await world.settle("r1", cost=150)
    assert await world.used("budget") == 150


async def test_projections_out_of_order_keep_the_newest_amount(world: World) -> None:
    world.limits = (world.limit("budget", 1000),)
    for name in ("r1", "r2"):
        await world.reserve(name, cost=100)
        await world.settle(name, cost=100)
    await world.project(200, 2, ["r2"])
    assert await world.used("budget") == 300
    await world.project(100, 1, ["r1"])
    await world.project(200, 2, ["r2"])
    assert await world.used("budget") == 200


async def test_one_request_counts_in_every_scope_and_period(world: World) -> None:
    world.limits = (
        world.limit("budget", 1000, "tenant"),
        world.limit("budget", 500, "project", period="day"),
        world.limit("budget", 300, "api_key", period="day"),
    )
    reservation = await world.reserve("r1", cost=200)
    assert [state.remaining for state in reservation.states] == [800, 300, 100]
    await world.settle("r1", cost=50)
    await world.project(50, 1, ["r1"], scope="tenant")
    seen = await world.reserve("r2", cost=1)
    assert [(state.committed, state.held) for state in seen.states] == [(50, 1), (0, 51), (0, 51)]


async def test_periods_follow_the_tenants_time_zone(world: World) -> None:
    world.time_zone = "Pacific/Tongatapu"  # UTC+13
    world.limits = (world.limit("budget", 100), world.limit("budget", 100, "tenant", period="day"))
    world.clock.at = datetime(2026, 11, 30, 10, 59, 59, tzinfo=UTC)
    last = await world.reserve(cost=100)
    assert [state.period_name for state in last.states] == ["2026-11", "2026-11-30"]
    with pytest.raises(QuotaExceeded) as caught:
        await world.reserve(cost=1)
    assert caught.value.retry_after_s == 1
    world.clock.advance(1)
    first = await world.reserve(cost=100)
    assert [state.period_name for state in first.states] == ["2026-12", "2026-12-01"]


async def test_request_over_midnight_leaves_no_hold_in_the_old_day(world: World) -> None:
    """It was reserved on the 29th and booked on the 30th."""
    world.limits = (world.limit("budget", 1000, period="day"),)
    await world.reserve("r1", cost=100)
    world.clock.at = datetime(2026, 11, 30, 0, 0, 5, tzinfo=UTC)
    await world.settle("r1", cost=70)
    await world.project(70, 1, ["r1"], period="2026-11-30")
    assert await world.used("budget") == 70
    prefix = f"tenora:quota:{{{world.tenant_id}}}"
    assert await world.store._redis.exists(f"{prefix}:held") == 0


async def test_budget_is_seeded_once_for_all_who_wait(world: World) -> None:
    world.ledger.amounts["project", str(world.project_id), "2026-11"] = (990, 5)
    world.limits = (world.limit("budget", 1000),)
    verdicts = await asyncio.gather(*(admitted(world, f"r{i}", 1) for i in range(100)))
    assert sum(verdicts) == 10
    assert world.ledger.reads.total() == 1


async def test_seeding_never_replaces_a_newer_projection(world: World) -> None:
    world.ledger.amounts["project", str(world.project_id), "2026-11"] = (100, 1)
    world.limits = (world.limit("budget", 1000),)
    await world.project(250, 2)
    await world.reserve()
    await world.project(100, 1)
    assert await world.used("budget") == 250


async def test_nothing_is_admitted_while_the_ledger_cannot_be_read(world: World) -> None:
    world.ledger.error = TimeoutError()
    world.limits = (world.limit("budget", 1000),)
    with pytest.raises(ServiceUnavailable) as caught:
        await world.reserve()
    assert caught.value.headers["retry-after"] == "1"
    world.ledger.error = None
    await world.reserve()


async def test_hold_that_no_projection_covers_is_replaced_by_the_ledgers_word(
    world: World,
) -> None:
    world.limits = (world.limit("budget", 1000),)
    await world.reserve("r1", cost=100)
    await world.settle("r1", cost=80)
    world.ledger.amounts["project", str(world.project_id), "2026-11"] = (80, 1)
    world.clock.advance(59 * 60)
    assert await world.used("budget") == 80
    world.clock.advance(60)
    seen = await world.reserve("r2")
    assert (seen.states[0].committed, seen.states[0].held) == (80, 0)


async def test_largest_amounts_stay_exact(world: World) -> None:
    largest = 2**53 - 1
    world.limits = (world.limit("budget", largest),)
    world.ledger.amounts["project", str(world.project_id), "2026-11"] = (largest - 3, 1)
    assert await admitted(world, "one", 1)
    assert not await admitted(world, "three", 3)
    assert await admitted(world, "two", 2)
    assert not await admitted(world, uuid4().hex, 1)
    assert await admitted(world, "free", 0)


async def test_negative_amounts_are_refused_before_redis(world: World) -> None:
    world.limits = (world.limit("budget", 1000),)
    await world.reserve("r1", cost=10)
    with pytest.raises(ValueError, match="negative"):
        await world.settle("r1", cost=-1)
    with pytest.raises(ValueError, match="negative"):
        await world.reserve(cost=-5)
    await world.project(-500, 1)
    assert await world.used("budget") == 10
