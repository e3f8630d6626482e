"""Admission against rates and concurrency: all limits or none, and an honest refusal."""

import asyncio
from uuid import uuid4

import pytest

from tenora_platform.errors import Conflict
from tenora_platform.quotas.errors import QuotaExceeded
from tests.platform.quotas.world import World


async def refusal(world: World, **request: int) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await world.reserve(**request)  # type: ignore[arg-type]
    return caught.value


async def test_admits_exactly_the_limit_at_one_instant(world: World) -> None:
    world.limits = (world.limit("requests_per_minute", 7),)
    for _ in range(7):
        await world.reserve()
    error = await refusal(world)
    assert error.binding.used == 7
    assert error.binding.remaining == 0


async def test_refusal_consumes_nothing_of_any_limit(world: World) -> None:
    world.limits = (
        world.limit("requests_per_minute", 5),
        world.limit("tokens_per_minute", 100, "tenant"),
        world.limit("concurrency", 10, "api_key"),
        world.limit("budget", 1000),
    )
    await world.reserve(prompt=50, output=30, cost=10)
    before = [
        await world.used(kind)
        for kind in ("requests_per_minute", "tokens_per_minute", "concurrency", "budget")
    ]
    await refusal(world, prompt=15, output=15, cost=10)
    after = [
        await world.used(kind)
        for kind in ("requests_per_minute", "tokens_per_minute", "concurrency", "budget")
    ]
    assert after == before == [1, 80, 1, 10]


async def test_limit_that_takes_longest_binds(world: World) -> None:
    """The request limit frees in 12 s, the token limit only in 54 s."""
    world.limits = (
        world.limit("requests_per_minute", 5),
        world.limit("tokens_per_minute", 100, "tenant"),
    )
    for _ in range(5):
        await world.reserve(prompt=10, output=10)
    error = await refusal(world, prompt=80, output=10)
    assert error.binding.limit.kind == "tokens_per_minute"
    assert error.binding.limit.scope_kind == "tenant"
    assert error.retry_after_s == 54


@pytest.mark.parametrize("value", [1, 5, 7, 59, 999])
async def test_retry_passes_after_exactly_the_announced_wait(world: World, value: int) -> None:
    world.limits = (world.limit("requests_per_minute", value),)
    for _ in range(value):
        await world.reserve()
    error = await refusal(world)
    wait_ms = int(error.headers["retry-after-ms"])
    assert int(error.headers["retry-after"]) == max(1, -(-wait_ms // 1000))
    world.clock.advance(ms=wait_ms - 1)
    await refusal(world)
    world.clock.advance(ms=1)
    await world.reserve()


async def test_retry_after_covers_every_limit_that_refused(world: World) -> None:
    world.limits = (
        world.limit("requests_per_minute", 3),
        world.limit("tokens_per_minute", 100),
        world.limit("tokens_per_minute", 130, "tenant"),
    )
    for _ in range(3):
        await world.reserve(prompt=20, output=10)
    error = await refusal(world, prompt=50, output=40)
    world.clock.advance(seconds=int(error.headers["retry-after"]))
    await world.reserve(prompt=50, output=40)


async def test_burst_bounds_one_instant_and_rate_bounds_the_minute(world: World) -> None:
    world.limits = (world.limit("requests_per_minute", 60, burst=2),)
    await world.reserve()
    await world.reserve()
    assert (await refusal(world)).binding.wait_ms == 1000
    world.clock.advance(1)
    await world.reserve()
    await refusal(world)


async def test_prompt_that_can_never_fit_is_refused_for_good(world: World) -> None:
    world.limits = (world.limit("tokens_per_minute", 100),)
    error = await refusal(world, prompt=150, output=1)
    assert error.headers["x-should-retry"] == "false"
    assert "retry-after" not in error.headers
    assert error.retry_after_s is None
    assert "Retrying does not help" in error.message


async def test_limit_of_zero_admits_nothing(world: World) -> None:
    for kind in ("requests_per_minute", "tokens_per_minute", "concurrency"):
        world.limits = (world.limit(kind, 0),)
        assert (await refusal(world)).should_retry is False


async def test_missing_max_tokens_is_capped_to_the_smallest_token_limit(world: World) -> None:
    world.limits = (
        world.limit("tokens_per_minute", 1000),
        world.limit("tokens_per_minute", 200, "api_key", burst=120),
    )
    reservation = await world.reserve(prompt=20, output=4096, given=False)
    assert reservation.max_tokens == 100
    assert reservation.was_capped
    assert reservation.states[0].used == 120


async def test_named_max_tokens_is_never_lowered(world: World) -> None:
    world.limits = (world.limit("tokens_per_minute", 1000),)
    error = await refusal(world, prompt=20, output=4096)
    assert error.should_retry is False
    world.limits = (world.limit("tokens_per_minute", 5000),)
    assert (await world.reserve(prompt=20, output=4096)).max_tokens == 4096


async def test_huge_max_tokens_disturbs_nobody_else(world: World) -> None:
    world.limits = (world.limit("tokens_per_minute", 1000), world.limit("budget", 10**6))
    await refusal(world, prompt=10, output=999_999_999, cost=10**18)
    for _ in range(5):
        await world.reserve(prompt=10, output=10, cost=100)


async def test_concurrency_counts_running_requests(world: World) -> None:
    world.limits = (world.limit("concurrency", 2),)
    first = await world.reserve()
    await world.reserve()
    error = await refusal(world)
    assert error.retry_after_s == 1
    await world.settle(first.request_id)
    await world.reserve()
    await refusal(world)


async def test_second_reserve_of_an_id_returns_the_first_result(world: World) -> None:
    world.limits = (
        world.limit("requests_per_minute", 1),
        world.limit("tokens_per_minute", 100),
        world.limit("concurrency", 1),
    )
    first = await world.reserve("r1", prompt=10, output=4096, given=False)
    again = await world.reserve("r1", prompt=10, output=4096, given=False)
    assert again.max_tokens == first.max_tokens == 90
    assert again.states == first.states
    assert await world.used("concurrency") == 1


async def test_id_of_an_ended_reservation_is_not_admitted_again(world: World) -> None:
    world.limits = (world.limit("concurrency", 5),)
    await world.reserve("r1")
    await world.settle("r1")
    with pytest.raises(Conflict):
        await world.reserve("r1")
    assert await world.used("concurrency") == 0


async def test_limit_edit_takes_effect_at_once(world: World) -> None:
    world.limits = (world.limit("requests_per_minute", 2),)
    await world.reserve()
    await world.reserve()
    await refusal(world)
    world.limits = (world.limit("requests_per_minute", 10),)
    for _ in range(8):
        await world.reserve()
    await refusal(world)
    world.limits = (world.limit("requests_per_minute", 2),)
    assert (await refusal(world)).binding.wait_ms <= 30_000


async def test_no_limits_need_no_redis(world: World) -> None:
    await world.store.close()
    reservation = await world.reserve(output=4096, given=False)
    assert reservation.max_tokens == 4096


async def test_check_takes_nothing_and_tells_what_reserve_would(world: World) -> None:
    world.limits = (world.limit("requests_per_minute", 1), world.limit("budget", 100))
    for _ in range(3):
        seen = await world.service.check(
            world.principal,
            prompt_tokens=5,
            max_tokens=5,
            max_tokens_given=True,
            cost_nanousd=60,
        )
        assert seen.is_admitted
    await world.reserve(cost=60)
    seen = await world.service.check(
        world.principal, prompt_tokens=5, max_tokens=5, max_tokens_given=True, cost_nanousd=60
    )
    assert seen.binding is not None
    assert seen.binding.limit.kind == "budget"


async def test_tenants_do_not_share_counters(world: World) -> None:
    world.limits = (world.limit("requests_per_minute", 1),)
    await world.reserve()
    world.tenant_id = uuid4()
    await world.reserve()


async def test_concurrent_duplicates_take_once(world: World) -> None:
    world.limits = (world.limit("concurrency", 10), world.limit("requests_per_minute", 10))
    await asyncio.gather(*(world.reserve("same") for _ in range(50)))
    assert await world.used("concurrency") == 1
    assert await world.used("requests_per_minute") == 1
