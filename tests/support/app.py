"""The whole API node over real Postgres and Redis and a fake engine, in process or on a socket.

Every stack serves a base model of its own, so prices, tenants and journals of tests never mix.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import uvicorn

from tenora_engine.protocol.fake import FakeEngine
from tenora_engine.protocol.messages import UsageRecord
from tenora_platform.app import TenoraApp, create_app
from tenora_platform.auth.authenticator import Authenticator
from tenora_platform.auth.scope import TenantScope, mint
from tenora_platform.billing.ledger import BudgetLedger
from tenora_platform.billing.service import BillingService
from tenora_platform.db.session import Database
from tenora_platform.kit.clock import SystemClock
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.service import QuotaService
from tenora_platform.settings import RequestLimits, Settings
from tenora_platform.tenants.provisioning import TenantLimit, provision_tenant
from tenora_platform.usage.models import UsageRecordRow
from tenora_platform.usage.service import UsageService
from tenora_platform.worker import Worker

PRICES = {"base": (1_000_000, 100_000, 2_000_000), "adapter": (3_000_000, 300_000, 6_000_000)}
"""Nano-USD per million tokens: input, cached input, output."""
PLENTY = (
    TenantLimit("requests_per_minute", 10_000),
    TenantLimit("tokens_per_minute", 10_000_000),
    TenantLimit("concurrency", 100),
    TenantLimit("budget", 10**12, period="month"),
)


@dataclass(frozen=True)
class TestTenant:
    """A tenant with one key."""

    __test__ = False

    id: UUID
    api_key: str

    @property
    def headers(self) -> dict[str, str]:
        """What the tenant's requests carry."""
        return {"authorization": f"Bearer {self.api_key}"}

    @property
    def scope(self) -> TenantScope:
        """The tenant's scope, as authentication would mint it."""
        return mint(self.id)


@dataclass
class Stack:
    """An API node and what stands around it."""

    app: TenoraApp
    engine: FakeEngine
    database: Database
    settings: Settings
    worker: Worker
    quotas: QuotaService
    client: httpx.AsyncClient
    """In process: for everything that needs no connection of its own."""
    tenants: list[TestTenant] = field(default_factory=list)

    @property
    def base_model(self) -> str:
        """What the fake engine serves."""
        return self.engine.info.base_model

    async def new_tenant(
        self,
        *,
        limits: Collection[TenantLimit] = PLENTY,
        scopes: Collection[str] = ("inference", "adapters", "usage"),
    ) -> TestTenant:
        """A tenant that no other test knows."""
        made = await provision_tenant(
            self.database,
            SystemClock(),
            slug=f"t-{uuid4().hex}",
            name="Test",
            limits=limits,
            scopes=scopes,
        )
        tenant = TestTenant(made.tenant.id, made.secret)
        self.tenants.append(tenant)
        return tenant

    def chat_body(self, **fields: object) -> dict[str, object]:
        """A small valid chat request to the base model, changed by `fields`."""
        messages = [{"role": "user", "content": "hi"}]
        return {"model": self.base_model, "messages": messages, "max_tokens": 32, **fields}

    async def chat(self, tenant: TestTenant, **fields: object) -> httpx.Response:
        """POST `chat_body(**fields)` as `tenant`."""
        body = self.chat_body(**fields)
        return await self.client.post("/v1/chat/completions", json=body, headers=tenant.headers)

    async def upload(self, tenant: TestTenant, name: str) -> httpx.Response:
        """Upload an adapter that the fake engine accepts."""
        return await self.client.post(
            "/v1/adapters", data={"name": name}, files=adapter_files(), headers=tenant.headers
        )

    async def held(self, tenant: TestTenant) -> int:
        """How many requests hold the tenant's concurrency now."""
        clock = SystemClock()
        authenticator = Authenticator(self.database, clock)
        principal = await authenticator.authenticate(tenant.headers["authorization"])
        check = await self.quotas.check(
            principal, prompt_tokens=1, max_tokens=1, max_tokens_given=True, cost_nanousd=0
        )
        return max(s.used for s in check.states if s.limit.kind == "concurrency")

    async def renewed(self) -> int:
        """How many reservations the node renews now, by its own metric."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        (value,) = (x.split()[1] for x in lines if x.startswith("tenora_reservations_held "))
        return int(float(value))

    async def journal(self) -> tuple[UsageRecord, ...]:
        """The engine's records that are not settled yet."""
        return (await self.engine.pull_usage(limit=10_000)).records

    async def settled(self, tenant: TestTenant) -> list[UsageRecordRow]:
        """All usage rows of `tenant` after the worker has done its work."""
        while await self.worker.drain_once():
            pass
        page = await UsageService(self.database).list_records(tenant.scope, limit=1000)
        return list(page.records)


def adapter_files() -> dict[str, tuple[str, bytes, str]]:
    """The two parts of an upload; the fake engine does not look inside."""
    names = ("adapter_config.json", "adapter_model.safetensors")
    return {name: (name, b"{}", "application/octet-stream") for name in names}


def nothing_is_left_of_uploads(stack: Stack) -> bool:
    """Whether the object store holds neither file nor folder any more."""
    folder = Path(stack.settings.object_store_url.removeprefix("file://"))
    return not list(folder.rglob("*"))


@pytest.fixture
async def stack(
    database: Database, database_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Stack]:
    """A running API node; after the test nothing may be reserved any more."""
    clock = SystemClock()
    engine = FakeEngine(base_model=f"base-{uuid4().hex}")
    await publish_prices(database, engine.info.base_model)
    settings = Settings(
        database_url=database_url,
        redis_url=redis_url,
        engine_url="ipc:///nowhere",
        object_store_url=f"file://{tmp_path}/objects",
        quota_deadline_ms=5000,  # the machine that runs tests is busy
        limits=RequestLimits(
            max_body_bytes=64 * 1024, max_adapter_config_bytes=1024, max_adapter_bytes=128 * 1024
        ),
    )
    app = create_app(settings, engine=engine)
    store = RedisQuotaStore(redis_url, deadline_s=5.0)
    quotas = QuotaService(store, BudgetLedger(database), clock)
    worker = Worker(database, engine, quotas, clock)
    async with running_app(app) as client:
        yield Stack(app, engine, database, settings, worker, quotas, client)
    await store.close()


def in_process(app: TenoraApp, address: str = "127.0.0.1") -> httpx.ASGITransport:
    """A transport that calls `app` directly, as a client at `address`."""
    asgi: Any = app
    return httpx.ASGITransport(asgi, raise_app_exceptions=False, client=(address, 5000))


@asynccontextmanager
async def running_app(app: TenoraApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app`, which runs from start-up to shut-down in one task as Litestar needs it."""
    started, stopping = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with app.lifespan():
            started.set()
            await stopping.wait()

    task = asyncio.create_task(live())
    started_task = asyncio.create_task(started.wait())
    await asyncio.wait({task, started_task}, return_when=asyncio.FIRST_COMPLETED)
    transport = in_process(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            yield client
    finally:
        stopping.set()
        await task
        await started_task


async def publish_prices(database: Database, base_model: str) -> None:
    """`PRICES` for `base_model`, in force at once."""
    async with database.system() as session:
        billing = BillingService(session, SystemClock())
        for target, (full, cached, output) in PRICES.items():
            await billing.publish_price(
                base_model=base_model,
                target="base" if target == "base" else "adapter",
                input_nanousd_per_mtok=full,
                cached_input_nanousd_per_mtok=cached,
                output_nanousd_per_mtok=output,
            )


@pytest.fixture
async def live_url(stack: Stack) -> AsyncIterator[str]:
    """The address of the stack's application behind a real socket and a real HTTP server."""
    async with serving(stack.app) as url:
        yield url


@asynccontextmanager
async def serving(app: TenoraApp) -> AsyncIterator[str]:
    """The address of `app`, which runs already, behind a socket and uvicorn."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn offers nothing to wait for
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await task
