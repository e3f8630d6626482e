"""The API node's composition root: settings in, one ASGI application out.

`create_app` builds every client and service of the process and names it; nothing else does.
`tenora_platform.app:app_from_environ` is a factory for any ASGI server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import Receive, Scope, Send
from redis.asyncio import Redis

from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.remote import RemoteEngine
from tenora_platform.adapters.controllers import AdapterController
from tenora_platform.adapters.service import AdapterService
from tenora_platform.adapters.tasks import AdapterAdmission
from tenora_platform.adapters.uploads import UploadReceiver, max_upload_bytes, open_object_store
from tenora_platform.auth.authenticator import Authenticator
from tenora_platform.billing.ledger import BudgetLedger
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.db.session import Database
from tenora_platform.engine_facts import EngineFacts
from tenora_platform.http.bodies import StrictRequest
from tenora_platform.http.error_responses import EXCEPTION_HANDLERS
from tenora_platform.http.policies import PUBLIC, PolicyGuard, provide_principal
from tenora_platform.inference.controllers import InferenceController, ModelController
from tenora_platform.inference.service import InferenceService
from tenora_platform.kit.clock import Clock, SystemClock
from tenora_platform.observability.controllers import Exposition, HealthProbe, OperationsController
from tenora_platform.observability.logging import configure_logging
from tenora_platform.observability.metrics import Metrics
from tenora_platform.observability.request_context import RequestContext
from tenora_platform.quotas.lease_keeper import LeaseKeeper
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.service import QuotaService
from tenora_platform.settings import Settings
from tenora_platform.usage.controllers import UsageController
from tenora_platform.usage.service import UsageService


class TenoraApp(Litestar):
    """Litestar inside the request context, so that also its 404s have an id and a log line."""

    def __init__(self, metrics: Metrics, **config: Any) -> None:
        super().__init__(**config)
        self._edge = RequestContext(super().__call__, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        """The ASGI entry point."""
        await self._edge(scope, receive, send)


def app_from_environ() -> TenoraApp:
    """The application of an API node, from the variables `TENORA_*`. Raises SettingsError."""
    settings = Settings.from_environ()
    configure_logging(settings.log_level)
    return create_app(settings)


def create_app(
    settings: Settings, *, engine: EngineClient | None = None, clock: Clock | None = None
) -> TenoraApp:
    """The application with every client and service it needs; it opens and closes them.

    An `engine` that is passed in replaces the one at `settings.engine_url`.
    """
    parts = _Parts(settings, engine, clock)
    return TenoraApp(
        parts.metrics,
        route_handlers=[
            InferenceController,
            ModelController,
            UsageController,
            OperationsController,
            Router(
                "/",
                route_handlers=[AdapterController],
                request_max_body_size=max_upload_bytes(settings.limits),
            ),
        ],
        request_class=StrictRequest,
        request_max_body_size=settings.limits.max_body_bytes,
        guards=[PolicyGuard(parts.authenticator, settings.metrics_token)],
        dependencies=parts.dependencies(),
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=_openapi(),
        lifespan=[parts.lifespan],
        logging_config=None,
    )


class _Parts:
    """Every object that lives as long as the process."""

    def __init__(
        self, settings: Settings, engine: EngineClient | None, clock: Clock | None
    ) -> None:
        clock = self.clock = clock or SystemClock()
        self.engine = engine or RemoteEngine(settings.engine_url)
        self.database = Database(settings.database_url)
        self.redis = Redis.from_url(settings.redis_url)
        self.metrics = Metrics()
        self.authenticator = Authenticator(self.database, clock)
        self.facts = EngineFacts(self.engine, clock)
        self.adapters = AdapterService(self.database, clock)
        self.admission = AdapterAdmission(self.adapters, self.engine, clock)
        self.uploads = UploadReceiver(open_object_store(settings.object_store_url), settings.limits)
        self.usage = UsageService(self.database)
        self.quota_store = RedisQuotaStore(
            settings.redis_url, deadline_s=settings.quota_deadline_ms / 1000
        )
        self.leases = LeaseKeeper(self.quota_store)
        self.quotas = QuotaService(
            self.quota_store, BudgetLedger(self.database), clock, self.leases
        )
        self.inference = InferenceService(
            engine=self.engine,
            facts=self.facts,
            adapters=self.adapters,
            prices=PriceBook(self.database, clock),
            quotas=self.quotas,
            leases=self.leases,
            clock=clock,
            metrics=self.metrics,
        )

    def dependencies(self) -> dict[str, Provide]:
        """What handlers may ask for by name."""
        constants = {
            "adapters": self.adapters,
            "admission": self.admission,
            "exposition": Exposition(self.metrics, self.engine, self.leases),
            "facts": self.facts,
            "health_probe": self._health_probe(),
            "inference": self.inference,
            "uploads": self.uploads,
            "usage": self.usage,
        }
        provided = {name: _constant(value) for name, value in constants.items()}
        return {"principal": Provide(provide_principal), **provided}

    @asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Renew leases while the application runs; close every client after it."""
        self.leases.start()
        try:
            yield
        finally:
            await self.leases.stop()
            await self.engine.close()
            await self.quota_store.close()
            await self.redis.aclose()
            await self.database.close()

    def _health_probe(self) -> HealthProbe:
        async def engine_serves() -> bool:
            return (await self.engine.health()).serving

        async def database_answers() -> bool:
            await self.database.ping()
            return True

        async def redis_answers() -> bool:
            return bool(await self.redis.ping())

        return HealthProbe(
            {"engine": engine_serves, "database": database_answers, "quotas": redis_answers},
            self.clock,
        )


def _constant(value: object) -> Provide:
    return Provide(lambda: value, use_cache=True, sync_to_thread=False)


def _openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Tenora",
        version=version("tenora"),
        use_handler_docstrings=True,
        render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"])],
        openapi_router=Router("/schema", route_handlers=[], opt=PUBLIC),
        components=Components(
            security_schemes={"api_key": SecurityScheme(type="http", scheme="bearer")}
        ),
        security=[{"api_key": []}],
    )
