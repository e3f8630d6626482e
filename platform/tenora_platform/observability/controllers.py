"""/health and /metrics, for whoever runs the service."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import structlog
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from prometheus_client import CONTENT_TYPE_LATEST

from tenora_engine.protocol.client import EngineClient
from tenora_platform.http.policies import OPERATIONS, PUBLIC
from tenora_platform.kit.clock import Clock
from tenora_platform.observability.metrics import Metrics
from tenora_platform.quotas.lease_keeper import LeaseKeeper

PROBE_TIMEOUT_S: Final = 2.0
MAX_AGE_S: Final = 1.0

_log = structlog.get_logger(__name__)


class HealthBody(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request would be served now; `parts` says `ok` or `unavailable` of each part."""

    serving: bool
    parts: dict[str, str]


class HealthProbe:
    """Asks every part that a request needs. Costs no quota, and at most one question a second."""

    def __init__(self, checks: Mapping[str, Callable[[], Awaitable[bool]]], clock: Clock) -> None:
        self._checks = checks
        self._clock = clock
        self._lock = asyncio.Lock()
        self._body: HealthBody | None = None
        self._fresh_until = 0.0

    async def check(self) -> HealthBody:
        """The state of all parts, at most `MAX_AGE_S` old; never raises."""
        async with self._lock:
            if self._body is None or self._clock.monotonic() >= self._fresh_until:
                self._body = await self._ask()
                self._fresh_until = self._clock.monotonic() + MAX_AGE_S
            return self._body

    async def _ask(self) -> HealthBody:
        names = list(self._checks)
        results = await asyncio.gather(*(self._is_well(name) for name in names))
        parts = {
            name: "ok" if is_well else "unavailable"
            for name, is_well in zip(names, results, strict=True)
        }
        return HealthBody(serving=all(results), parts=parts)

    async def _is_well(self, name: str) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await self._checks[name]()
        except Exception as error:  # noqa: BLE001 - whatever it is, this part does not serve
            _log.warning("health.part_unavailable", part=name, error=type(error).__name__)
            return False


class Exposition:
    """Everything that `/metrics` shows, brought together when it is asked for."""

    def __init__(self, metrics: Metrics, engine: EngineClient, leases: LeaseKeeper) -> None:
        self._metrics = metrics
        self._engine = engine
        self._leases = leases

    async def render(self) -> bytes:
        """The exposition text as of now. Never raises: a dead engine does not serve."""
        return self._metrics.render(await self._engine.health(), self._leases.num_held)


class OperationsController(Controller):
    """What probes and scrapers read."""

    tags = ("Operations",)

    @get("/health", opt=PUBLIC)
    async def health(self, health_probe: NamedDependency[HealthProbe]) -> Response[HealthBody]:
        """200 if a request would be served now, else 503."""
        body = await health_probe.check()
        return Response(body, status_code=200 if body.serving else 503)

    @get("/metrics", opt=OPERATIONS, media_type=CONTENT_TYPE_LATEST)
    async def metrics(self, exposition: NamedDependency[Exposition]) -> Response[bytes]:
        """Prometheus exposition text."""
        return Response(await exposition.render(), media_type=CONTENT_TYPE_LATEST)
