"""The API node over the wire to a real engine front: the composition that production runs.

The core behind the front is scripted; everything between it and the HTTP client is the product.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenora_engine.front.server import FrontServer
from tenora_engine.protocol.remote import RemoteEngine
from tenora_platform.app import create_app
from tenora_platform.auth.scope import mint
from tenora_platform.billing.ledger import BudgetLedger
from tenora_platform.db.session import Database
from tenora_platform.kit.clock import SystemClock
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.service import QuotaService
from tenora_platform.settings import Settings
from tenora_platform.tenants.provisioning import ProvisionedTenant, provision_tenant
from tenora_platform.usage.models import UsageRecordRow
from tenora_platform.usage.service import UsageService
from tenora_platform.worker import Worker
from tests.support.app import PLENTY, publish_prices, running_app, serving
from tests.support.front import front_config, running_front, short_folder, until_serving
from tests.support.scripted_core import ScriptedCore
from tests.support.tiny_tokenizer import byte_ids


class Node:
    """An API node, its worker, and the scripted core at the far end."""

    def __init__(
        self, url: str, core: ScriptedCore, tenant: ProvisionedTenant, base_model: str
    ) -> None:
        self.core = core
        self.tenant = tenant
        self.base_model = base_model
        self.client = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {tenant.secret}"}, timeout=30
        )

    def body(self, **fields: Any) -> dict[str, Any]:
        """A chat request."""
        messages = [{"role": "user", "content": "hi"}]
        return {"model": self.base_model, "messages": messages, "max_tokens": 500, **fields}


async def _settled(
    database: Database, worker: Worker, tenant: ProvisionedTenant
) -> list[UsageRecordRow]:
    """The tenant's records, once there is one."""
    usage = UsageService(database)
    for _ in range(200):
        await worker.drain_once()
        if rows := (await usage.list_records(mint(tenant.tenant.id))).records:
            return list(rows)
        await asyncio.sleep(0.05)
    raise AssertionError("no record within 10 s")


@pytest.fixture
async def node(
    database: Database, database_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[tuple[Node, Worker]]:
    """A node whose engine is a front of its own over a Unix socket."""
    folder, clock = short_folder(), SystemClock()
    base_model = f"tiny-{new_id().hex}"
    core, config = ScriptedCore(folder), front_config(folder, base_model=base_model)
    await publish_prices(database, base_model)
    tenant = await provision_tenant(
        database, clock, slug=f"t-{new_id().hex}", name="Test", limits=PLENTY
    )
    settings = Settings(
        database_url=database_url,
        redis_url=redis_url,
        engine_url=config.listen_url,
        object_store_url=f"file://{tmp_path}/objects",
        quota_deadline_ms=5000,
    )
    async with running_front(config, core) as front, _listening(front, config.listen_url):
        engine = RemoteEngine(config.listen_url, "worker")
        await until_serving(engine)
        store = RedisQuotaStore(redis_url, deadline_s=5.0)
        worker = Worker(database, engine, QuotaService(store, BudgetLedger(database), clock), clock)
        app = create_app(settings)
        async with running_app(app), serving(app) as url:
            made = Node(url, core, tenant, base_model)
            yield made, worker
            await made.client.aclose()
        await engine.close()
        await store.close()
    shutil.rmtree(folder)


@asynccontextmanager
async def _listening(front: Any, url: str) -> AsyncIterator[None]:
    server = FrontServer(front, url)
    await server.start()
    yield
    await server.close()


async def test_an_answer_is_the_same_whole_and_streamed_and_is_booked(
    node: tuple[Node, Worker], database: Database
) -> None:
    api, worker = node
    api.core.loop.script = lambda _: byte_ids("Grüße, 日本 👩‍👩‍👧!")
    whole = await api.client.post("/v1/chat/completions", json=api.body())
    assert whole.status_code == 200, whole.text
    content = whole.json()["choices"][0]["message"]["content"]
    assert content == "Grüße, 日本 👩‍👩‍👧!"
    stream = await api.client.post("/v1/chat/completions", json=api.body(stream=True))
    deltas = [
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
        for line in stream.text.splitlines()
        if line.startswith("data: {")
    ]
    assert "".join(delta.get("content", "") for delta in deltas) == content
    for _ in range(100):
        rows = await _settled(database, worker, api.tenant)
        if len(rows) == 2:
            break
    assert [row.outcome for row in rows] == ["stop", "stop"]
    assert len({row.completion_tokens for row in rows}) == 1
    assert all(row.amount_nanousd > 0 for row in rows)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_core_within_a_second(
    node: tuple[Node, Worker], database: Database, stream: bool
) -> None:
    api, worker = node
    api.core.loop.script = lambda _: byte_ids("x" * 400)
    api.core.loop.step_interval_s = 0.05
    sending = asyncio.create_task(
        api.client.post("/v1/chat/completions", json=api.body(stream=stream))
    )
    for _ in range(500):
        if api.core.adds():
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    for _ in range(100):
        if api.core.aborts():
            break
        await asyncio.sleep(0.01)
    assert len(api.core.aborts()) == 1
    (row,) = await _settled(database, worker, api.tenant)
    assert row.outcome == "aborted"
    assert 1 <= row.completion_tokens < 400


async def test_a_dead_front_is_503_and_health_says_so(node: tuple[Node, Worker]) -> None:
    api, _ = node
    api.core.kill()
    for _ in range(200):
        health = await api.client.get("/health")
        if health.status_code == 503:
            break
        await asyncio.sleep(0.05)
    assert health.json()["parts"]["engine"] == "unavailable"
    response = await api.client.post("/v1/chat/completions", json=api.body())
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
