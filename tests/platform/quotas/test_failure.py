"""Redis slow, gone, empty or old: nothing is admitted unmetered, and nothing waits for long."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tenora_platform.errors import ServiceUnavailable
from tenora_platform.quotas.errors import QuotaExceeded
from tenora_platform.quotas.lease_keeper import LeaseKeeper
from tenora_platform.quotas.redis_store import DEADLINE_S
from tenora_platform.quotas.service import QuotaService
from tests.platform.quotas.world import World
from tests.support.redis_server import RedisServer


@pytest.fixture
def budgeted(real_time_world: World) -> World:
    """A budget of 1,000 of which the ledger has booked 400."""
    world = real_time_world
    world.limits = (world.limit("budget", 1000), world.limit("concurrency", 50))
    world.ledger.amounts["project", str(world.project_id), "2026-11"] = (400, 4)
    return world


@pytest.fixture
def frozen(redis_server: RedisServer) -> Iterator[RedisServer]:
    """The server, thawed again whatever happens."""
    yield redis_server
    redis_server.thaw()


async def refused(world: World) -> float:
    """Seconds until admission said 503."""
    started = time.monotonic()
    with pytest.raises(ServiceUnavailable) as caught:
        await world.reserve(cost=1)
    assert caught.value.status == 503
    assert int(caught.value.headers["retry-after"]) >= 1
    return time.monotonic() - started


async def test_frozen_redis_is_refused_at_the_deadline_then_at_once(
    budgeted: World, frozen: RedisServer
) -> None:
    await budgeted.reserve(cost=1)
    frozen.freeze()
    waits = [await refused(budgeted) for _ in range(13)]
    assert waits[0] >= 2 * DEADLINE_S, "the first ones wait for the deadline"
    assert sum(wait > DEADLINE_S for wait in waits) <= 5, "then the breaker answers"
    frozen.thaw()
    await asyncio.sleep(1.1)
    await budgeted.reserve(cost=1)


async def test_dead_redis_is_refused_and_recovers_from_the_ledger(
    budgeted: World, redis_server: RedisServer
) -> None:
    await budgeted.reserve(cost=1)
    redis_server.kill()
    for _ in range(5):
        await refused(budgeted)
    redis_server.start()
    await asyncio.sleep(1.1)
    seen = await budgeted.reserve(cost=600)
    assert seen.states[0].committed == 400
    with pytest.raises(QuotaExceeded):
        await budgeted.reserve(cost=1)


async def test_flushed_redis_is_seeded_from_the_ledger_before_it_admits(
    budgeted: World, redis_server: RedisServer
) -> None:
    await budgeted.reserve(cost=600)
    budgeted.ledger.amounts["project", str(budgeted.project_id), "2026-11"] = (950, 5)
    redis_server.command("FLUSHALL")
    with pytest.raises(QuotaExceeded) as caught:
        await budgeted.reserve(cost=51)
    assert caught.value.binding.committed == 950
    await budgeted.reserve(cost=50)


async def test_running_requests_are_held_again_after_a_flush(
    budgeted: World, redis_server: RedisServer
) -> None:
    keeper = LeaseKeeper(budgeted.store)
    budgeted.service = QuotaService(budgeted.store, budgeted.ledger, budgeted.clock, keeper)
    await budgeted.reserve("running", cost=600)
    redis_server.command("FLUSHALL")
    await keeper.renew_all()
    with pytest.raises(QuotaExceeded) as caught:
        await budgeted.reserve(cost=1)
    assert caught.value.binding.held == 600
    assert await budgeted.used("concurrency") == 1


async def test_old_snapshot_is_not_believed(budgeted: World, redis_server: RedisServer) -> None:
    await budgeted.reserve("early", cost=1)
    await budgeted.release("early")
    redis_server.command("SAVE")
    await budgeted.project(990, 9)
    budgeted.ledger.amounts["project", str(budgeted.project_id), "2026-11"] = (990, 9)
    redis_server.kill()
    redis_server.start()
    with pytest.raises(QuotaExceeded) as caught:
        await budgeted.reserve(cost=11)
    assert caught.value.binding.committed == 990


async def test_restart_costs_no_refusal_when_redis_is_back(
    budgeted: World, redis_server: RedisServer
) -> None:
    """Broken pooled connections and forgotten scripts are not the caller's problem."""
    await asyncio.gather(*(budgeted.reserve(cost=1) for _ in range(20)))
    redis_server.kill()
    redis_server.start()
    await asyncio.gather(*(budgeted.reserve(cost=1) for _ in range(20)))


async def test_settlement_repeated_after_an_outage_counts_once(
    budgeted: World, frozen: RedisServer
) -> None:
    await budgeted.reserve("r1", cost=500)
    frozen.freeze()
    with pytest.raises(ServiceUnavailable):
        await budgeted.settle("r1", cost=200)
    frozen.thaw()
    await asyncio.sleep(0.1)
    await budgeted.settle("r1", cost=200)
    await budgeted.settle("r1", cost=200)
    assert await budgeted.used("budget") == 600


async def test_outcome_unknown_to_the_client_is_freed_with_its_lease(
    budgeted: World, frozen: RedisServer
) -> None:
    """A frozen Redis executes, once thawed, what its client gave up on; the id finds it again."""
    frozen.freeze()
    with pytest.raises(ServiceUnavailable):
        await budgeted.reserve("r1", cost=500)
    frozen.thaw()
    await asyncio.sleep(0.1)
    await budgeted.reserve("r1", cost=500)
    await budgeted.release("r1")
    assert await budgeted.used("budget") == 400


async def test_a_cancelled_admission_never_goes_on(real_time_world: World) -> None:
    world = real_time_world
    world.limits = (world.limit("concurrency", 10_000),)
    await world.reserve()
    num_cancelled = 0
    for step in range(400):
        task = asyncio.create_task(world.reserve())
        for _ in range(step % 20):  # turns of the event loop: the cancellation meets every await
            await asyncio.sleep(0)
        if task.cancel():
            num_cancelled += 1
            with pytest.raises(asyncio.CancelledError):
                await task
    assert num_cancelled > 100
