"""The life of a reservation: settled, released, renewed, expired, in any order, without a rest."""

import asyncio
from uuid import uuid4

import pytest

from tenora_platform.quotas.errors import QuotaExceeded
from tenora_platform.quotas.lease_keeper import LeaseKeeper
from tenora_platform.quotas.service import QuotaService
from tests.platform.quotas.world import World

LEASE_S = 30


@pytest.fixture
def limited(world: World) -> World:
    """One limit of each kind."""
    world.limits = (
        world.limit("requests_per_minute", 100),
        world.limit("tokens_per_minute", 1000, "tenant"),
        world.limit("concurrency", 3, "api_key"),
        world.limit("budget", 1000),
    )
    return world


async def usage(world: World) -> dict[str, int]:
    """Requests, tokens, concurrency and money in use."""
    names = ("requests_per_minute", "tokens_per_minute", "concurrency", "budget")
    return {name.split("_")[0]: await world.used(name) for name in names}  # type: ignore[arg-type]


async def test_settlement_refunds_unused_tokens_and_holds_the_real_cost(limited: World) -> None:
    await limited.reserve("r1", prompt=100, output=400, cost=500)
    await limited.settle("r1", prompt=100, completion=20, cost=120)
    assert await usage(limited) == {"requests": 1, "tokens": 120, "concurrency": 0, "budget": 120}


async def test_release_gives_everything_back(limited: World) -> None:
    await limited.reserve("r1", prompt=100, output=400, cost=500)
    await limited.release("r1")
    assert await usage(limited) == {"requests": 0, "tokens": 0, "concurrency": 0, "budget": 0}


async def test_settling_or_releasing_twice_changes_nothing(limited: World) -> None:
    await limited.reserve("r1", prompt=100, output=400, cost=500)
    await limited.reserve("r2", prompt=10, output=10, cost=50)
    await limited.settle("r1", prompt=100, completion=20, cost=120)
    expected = await usage(limited)
    await limited.settle("r1", prompt=100, completion=300, cost=400)
    await limited.release("r1")
    assert await usage(limited) == expected


async def test_unknown_ids_change_nothing(limited: World) -> None:
    await limited.settle("never", completion=5, cost=70)
    await limited.release("never")
    await limited.project(0, 0, ["never"])
    assert await usage(limited) == {"requests": 0, "tokens": 0, "concurrency": 0, "budget": 0}


async def test_abandoned_reservation_frees_money_and_concurrency_with_its_lease(
    limited: World,
) -> None:
    await limited.reserve("r1", prompt=100, output=400, cost=500)
    limited.clock.advance(LEASE_S - 0.001)
    assert (await usage(limited))["concurrency"] == 1
    limited.clock.advance(ms=1)
    left = await usage(limited)
    assert left["concurrency"] == left["budget"] == 0


async def test_renewed_reservation_is_held_however_long_it_runs(limited: World) -> None:
    await limited.reserve("r1", cost=500)
    for _ in range(50):
        limited.clock.advance(LEASE_S - 1)
        assert await limited.service.renew(limited.tenant_id, ["r1"]) == ()
    assert (await usage(limited))["budget"] == 500


async def test_settlement_after_expiry_is_charged_and_never_negative(limited: World) -> None:
    await limited.reserve("r1", prompt=100, output=400, cost=500)
    limited.clock.advance(LEASE_S)
    assert (await usage(limited))["budget"] == 0
    await limited.settle("r1", prompt=100, completion=20, cost=120)
    left = await usage(limited)
    assert (left["concurrency"], left["budget"]) == (0, 120)
    await limited.project(120, 1, ["r1"])
    assert (await usage(limited))["budget"] == 120


async def test_settlement_after_release_is_charged(limited: World) -> None:
    """The engine had run after all: the ledger will have it, so the hold comes back until then."""
    await limited.reserve("r1", prompt=100, output=400, cost=500)
    await limited.release("r1")
    await limited.settle("r1", prompt=100, completion=20, cost=120)
    assert await usage(limited) == {"requests": 0, "tokens": 120, "concurrency": 0, "budget": 120}


async def test_settlement_above_the_reservation_is_counted_in_full(limited: World) -> None:
    await limited.reserve("r1", prompt=10, output=10, cost=500)
    await limited.settle("r1", prompt=10, completion=30, cost=1500)
    assert (await usage(limited))["tokens"] == 40
    assert (await usage(limited))["budget"] == 1500
    with pytest.raises(QuotaExceeded) as caught:
        await limited.reserve(cost=1)
    assert caught.value.binding.remaining == 0


async def test_keeper_renews_what_runs_and_drops_what_ended(limited: World) -> None:
    keeper = LeaseKeeper(limited.store)
    limited.service = QuotaService(limited.store, limited.ledger, limited.clock, keeper)
    await limited.reserve("r1", cost=100)
    await limited.reserve("r2", cost=100)
    await limited.settle("r2", cost=10)
    for _ in range(4):
        limited.clock.advance(20)
        await keeper.renew_all()
    assert keeper.num_held == 1
    assert (await usage(limited))["concurrency"] == 1
    await limited.release("r1")
    assert keeper.num_held == 0


async def test_keeper_restores_what_expired_while_the_process_stood_still(limited: World) -> None:
    keeper = LeaseKeeper(limited.store)
    limited.service = QuotaService(limited.store, limited.ledger, limited.clock, keeper)
    await limited.reserve("r1", prompt=100, output=100, cost=100)
    limited.clock.advance(LEASE_S + 1)
    assert (await usage(limited))["concurrency"] == 0
    tokens = (await usage(limited))["tokens"]
    await keeper.renew_all()
    assert (await usage(limited))["concurrency"] == 1
    assert (await usage(limited))["budget"] == 100
    assert (await usage(limited))["tokens"] == tokens
    await limited.settle("r1", cost=0)
    assert (await usage(limited))["concurrency"] == (await usage(limited))["budget"] == 0


async def test_keeper_task_renews_by_itself_and_stops(limited: World) -> None:
    keeper = LeaseKeeper(limited.store, renew_every_s=0.01)
    limited.service = QuotaService(limited.store, limited.ledger, limited.clock, keeper)
    await limited.reserve("r1", cost=100)
    keeper.start()
    for _ in range(5):
        limited.clock.advance(20)
        await asyncio.sleep(0.1)
    await keeper.stop()
    assert (await usage(limited))["concurrency"] == 1


async def test_many_dead_leases_expire_before_the_next_decision(limited: World) -> None:
    """More than one call's share of the sweep: the store asks again until none is left."""
    limited.limits = (limited.limit("concurrency", 500),)
    for _ in range(10):
        await asyncio.gather(*(limited.reserve() for _ in range(50)))
    with pytest.raises(QuotaExceeded):
        await limited.reserve()
    limited.clock.advance(LEASE_S)
    reservation = await limited.reserve()
    assert reservation.states[0].used == 1


async def test_nothing_of_finished_requests_stays_in_redis(limited: World) -> None:
    for number in range(20):
        request_id = uuid4().hex
        await limited.reserve(request_id, cost=10)
        await limited.settle(request_id, cost=5)
        await limited.project(5 * (number + 1), number + 1, [request_id])
    limited.clock.advance(11 * 60)
    await usage(limited)
    redis = limited.store._redis
    prefix = f"tenora:quota:{{{limited.tenant_id}}}"
    for key in ("live", "held", "reservations", "leases", "rates"):
        assert await redis.exists(f"{prefix}:{key}") == 0, key
