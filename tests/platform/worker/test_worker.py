"""The worker through outages: nothing lost, nothing doubled, holds always released."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tenora_engine.protocol.errors import EngineUnavailableError
from tenora_engine.protocol.fake import FakeEngine
from tenora_engine.protocol.messages import GenerateRequest, UsageBatch
from tenora_platform.billing.rating import Price
from tenora_platform.db.session import Database
from tenora_platform.errors import ServiceUnavailable
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.limits import ScopeKind
from tenora_platform.worker import Worker
from tests.support.books import read_books
from tests.support.clock import FakeClock
from tests.support.usage_records import attribution_of, publish_price


class RecordingQuotas:
    """Remembers what it was told; fails on demand, like a Redis that went away."""

    def __init__(self) -> None:
        self.is_down = False
        self.settled: list[tuple[UUID, str, int]] = []
        self.projected: dict[tuple[str, str, str], tuple[int, int]] = {}
        self.covered: set[str] = set()

    async def settle(
        self,
        tenant_id: UUID,
        request_id: str,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        cost_nanousd: int,
    ) -> None:
        if self.is_down:
            raise ServiceUnavailable("Redis is away.")
        assert prompt_tokens >= 0
        assert completion_tokens >= 0
        self.settled.append((tenant_id, request_id, cost_nanousd))

    async def project_budget(
        self,
        tenant_id: UUID,
        *,
        scope_kind: ScopeKind,
        scope_id: str,
        period_name: str,
        committed_nanousd: int,
        seq: int,
        covered_request_ids: Sequence[str],
    ) -> None:
        del tenant_id
        self.projected[scope_kind, scope_id, period_name] = (committed_nanousd, seq)
        self.covered.update(covered_request_ids)


class UnsteadyEngine(FakeEngine):
    """Fails to hand out or to forget records while told to."""

    def __init__(self) -> None:
        super().__init__()
        self.pull_fails = False
        self.acknowledge_fails = False
        self.was_refused = asyncio.Event()
        self.was_acknowledged = asyncio.Event()

    async def pull_usage(self, *, limit: int) -> UsageBatch:
        if self.pull_fails:
            self.was_refused.set()
            raise EngineUnavailableError("The engine is away.")
        return await super().pull_usage(limit=limit)

    async def acknowledge_usage(self, *, up_to_seq: int) -> None:
        if self.acknowledge_fails:
            raise EngineUnavailableError("The engine is away.")
        await super().acknowledge_usage(up_to_seq=up_to_seq)
        self.was_acknowledged.set()


class World:
    """A tenant that uses an engine, and the worker that settles it."""

    def __init__(self, database: Database, price: Price) -> None:
        self.database = database
        self.tenant_id = new_id()
        self.attribution = attribution_of(self.tenant_id, price)
        self.engine = UnsteadyEngine()
        self.quotas = RecordingQuotas()
        self.worker = Worker(database, self.engine, self.quotas, FakeClock())

    async def generate(self, count: int = 1) -> list[str]:
        """Run requests to their end and return their ids."""
        request_ids = [str(new_id()) for _ in range(count)]
        for request_id in request_ids:
            request = GenerateRequest(
                request_id=request_id,
                token_ids=(1, 2, 3),
                template_version="text",
                max_tokens=4,
                attribution=self.attribution.encode(),
            )
            async for _ in self.engine.generate(request):
                pass
        return request_ids

    async def backlog(self) -> int:
        return (await self.engine.health()).journal_backlog

    async def booked(self) -> set[str]:
        books = await read_books(self.database, self.tenant_id)
        books.assert_consistent()
        return set(books.ledger)


@pytest.fixture
async def world(database: Database) -> World:
    return World(database, await publish_price(database, FakeClock(), per_mtok=(10**7, 0, 10**7)))


async def test_settles_projects_and_acknowledges(world: World) -> None:
    request_ids = set(await world.generate(3))
    assert await world.worker.drain_once() == 3
    assert await world.booked() == request_ids == world.quotas.covered
    cost = 3 * 10 + 4 * 10
    assert {entry[2] for entry in world.quotas.settled} == {cost}
    assert {spent for spent, _ in world.quotas.projected.values()} == {3 * cost}
    assert len(world.quotas.projected) == 6
    assert await world.backlog() == 0
    assert await world.worker.drain_once() == 0


async def test_redis_down_keeps_the_batch_until_holds_are_released(world: World) -> None:
    (request_id,) = await world.generate()
    world.quotas.is_down = True
    with pytest.raises(ServiceUnavailable):
        await world.worker.drain_once()
    assert await world.backlog() == 1
    world.quotas.is_down = False
    assert await world.worker.drain_once() == 1
    assert await world.booked() == {request_id} == world.quotas.covered
    assert await world.backlog() == 0


async def test_a_lost_acknowledgement_does_not_double(world: World) -> None:
    request_ids = set(await world.generate(2))
    world.engine.acknowledge_fails = True
    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            await world.worker.drain_once()
    world.engine.acknowledge_fails = False
    await world.worker.drain_once()
    assert await world.booked() == request_ids
    assert {spent for spent, _ in world.quotas.projected.values()} == {2 * 70}


async def test_a_database_outage_loses_nothing(world: World) -> None:
    (request_id,) = await world.generate()
    absent = Database("postgresql+asyncpg://postgres@/x?host=/nonexistent-socket-folder")
    cut_off = Worker(absent, world.engine, world.quotas, FakeClock())
    with pytest.raises(ServiceUnavailable):
        await cut_off.drain_once()
    await absent.close()
    assert await world.backlog() == 1
    assert world.quotas.settled == []
    await world.worker.drain_once()
    assert await world.booked() == {request_id}


async def test_two_workers_on_one_engine_book_each_request_once(world: World) -> None:
    request_ids = set(await world.generate(6))
    second = Worker(world.database, world.engine, world.quotas, FakeClock())
    await asyncio.gather(world.worker.drain_once(), second.drain_once())
    assert await world.booked() == request_ids


async def test_an_unreadable_record_is_reported_and_does_not_stop_the_others(
    world: World,
) -> None:
    (good,) = await world.generate()
    request = GenerateRequest(
        request_id=str(new_id()),
        token_ids=(1,),
        template_version="text",
        max_tokens=1,
        attribution=b"\xc1",
    )
    async for _ in world.engine.generate(request):
        pass
    with capture_logs() as logs:
        await world.worker.drain_once()
    assert await world.booked() == {good}
    assert await world.backlog() == 0
    (alarm,) = [log for log in logs if log["event"] == "usage.rejected"]
    assert (alarm["log_level"], alarm["reason"]) == ("error", "unreadable_attribution")
    assert alarm["request_id"] == request.request_id
    (settled,) = [log for log in logs if log["event"] == "usage.settled"]
    assert (settled["num_booked"], settled["num_rejected"]) == (1, 1)


async def test_runs_through_an_outage_until_it_is_stopped(world: World) -> None:
    world.engine.pull_fails = True
    with capture_logs() as logs:
        running = asyncio.create_task(world.worker.run())
        await asyncio.wait_for(world.engine.was_refused.wait(), 10)
        world.engine.pull_fails = False
        (request_id,) = await world.generate()
        await asyncio.wait_for(world.engine.was_acknowledged.wait(), 10)
        world.worker.stop()
        await asyncio.wait_for(running, 10)
    assert await world.booked() == {request_id}
    waits = [log for log in logs if log["event"] == "worker.waiting"]
    assert {(log["log_level"], log["code"]) for log in waits} == {("warning", "engine_unavailable")}


async def test_a_cancelled_worker_leaves_the_books_whole(world: World) -> None:
    request_ids = set(await world.generate(3))
    for delay in (0, 0.002, 0.005, 0.01, 0.02):
        task = asyncio.create_task(world.worker.drain_once())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await world.booked() in (set(), request_ids)
    await world.worker.drain_once()
    assert await world.booked() == request_ids
    assert await world.backlog() == 0
