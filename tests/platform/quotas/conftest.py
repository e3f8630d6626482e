"""Fixtures of the quota tests: a tenant of one's own on the shared Redis, in simulated time."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tenora_platform.quotas.redis_store import DEADLINE_S, RedisQuotaStore
from tests.platform.quotas.world import ManualClock, World, make_world
from tests.support.redis_server import RedisServer, running_redis


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    """A tenant without limits; its scripts see the time of `world.clock`."""
    clock = ManualClock()
    store = RedisQuotaStore(redis_url, clock_ms=clock.ms, deadline_s=5)
    yield make_world(store, clock)
    await store.close()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be frozen, flushed and restarted."""
    with running_redis() as server:
        yield server


@pytest.fixture
async def real_time_world(redis_server: RedisServer) -> AsyncIterator[World]:
    """A tenant on that server, by Redis's own clock.

    The deadline is twice the default, so that a busy test machine is not taken for a dead Redis.
    """
    store = RedisQuotaStore(redis_server.url, deadline_s=2 * DEADLINE_S)
    yield make_world(store, ManualClock())
    await store.close()
