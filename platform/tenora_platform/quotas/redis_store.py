"""Quota state in Redis: runs the scripts of `scripts/`, within a deadline, behind a breaker.

All keys of a tenant carry the hash tag `{tenant_id}`, so a script touches one slot only.
"""

import asyncio
from collections.abc import Callable, Sequence
from importlib.resources import files
from time import monotonic
from typing import TypeVar
from uuid import UUID

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenora_platform.quotas.breaker import CircuitBreaker
from tenora_platform.quotas.store import (
    LEASE_MS,
    EndStatus,
    Projection,
    ReserveCall,
    ReserveReply,
    StoreUnavailableError,
)

DEADLINE_S = 0.25
"""The longest that one call waits for Redis."""

_KEYS = ("rates", "live", "committed", "held", "reservations", "leases", "forget")
_SCRIPTS = ("reserve", "settle", "release", "renew", "project")
_BATCH = 500
_CONNECTIONS = 16
_Reply = TypeVar("_Reply", bound=msgspec.Struct)
_log = structlog.get_logger(__name__)


class _Reserved(ReserveReply, frozen=True, kw_only=True):
    sweeping: bool = False


class _Ended(msgspec.Struct):
    status: EndStatus


class _Renewed(msgspec.Struct):
    lost: tuple[str, ...]


class _Projected(msgspec.Struct):
    status: str


class RedisQuotaStore:
    """Implements `QuotaStore` on one event loop. Close it to drop its connections.

    `clock_ms` replaces the clock that the scripts see, for simulations; without it Redis's own
    clock rules, so that the nodes' clocks do not matter.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = DEADLINE_S,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        # The deadline of `_run` is the only time-out: the client's own (5 s) waits with
        # `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes together with
        # its result, and a request whose client has left would go on.
        self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
        self._scripts = {name: self._redis.register_script(_source(name)) for name in _SCRIPTS}
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self._meeting = asyncio.Lock()
        self._breaker = CircuitBreaker(monotonic)
        self._deadline_s = deadline_s
        self._clock_ms = clock_ms
        self._run_id = ""

    async def close(self) -> None:
        """Drop all connections."""
        await self._redis.aclose()

    async def reserve(self, tenant_id: UUID, call: ReserveCall) -> ReserveReply:
        """Check all charges, then take all of them or none. Idempotent by `request_id`."""
        fields = {**msgspec.structs.asdict(call), "lease_ms": LEASE_MS}
        reply = await self._run("reserve", tenant_id, fields, _Reserved)
        while reply.sweeping:
            reply = await self._run("reserve", tenant_id, fields, _Reserved)
        return reply

    async def settle(
        self, tenant_id: UUID, request_id: str, *, tokens: int, cost: int
    ) -> EndStatus:
        """Turn a reservation into what was used. Idempotent: the first settlement counts."""
        fields = {"request_id": request_id, "tokens": tokens, "cost": cost}
        return (await self._run("settle", tenant_id, fields, _Ended)).status

    async def release(self, tenant_id: UUID, request_id: str) -> EndStatus:
        """Give back everything that a reservation took. Idempotent; a settled one stays."""
        return (await self._run("release", tenant_id, {"request_id": request_id}, _Ended)).status

    async def renew(self, tenant_id: UUID, request_ids: Sequence[str]) -> tuple[str, ...]:
        """Extend leases; return the ids that are no longer held."""
        lost: list[str] = []
        for start in range(0, len(request_ids), _BATCH):
            batch = request_ids[start : start + _BATCH]
            fields = {"request_ids": batch, "lease_ms": LEASE_MS}
            lost += (await self._run("renew", tenant_id, fields, _Renewed)).lost
        return tuple(lost)

    async def project(self, tenant_id: UUID, projection: Projection) -> None:
        """Apply a projection. Idempotent and safe in any order."""
        fields = msgspec.structs.asdict(projection)
        for start in range(0, max(1, len(projection.covered)), _BATCH):
            batch = projection.covered[start : start + _BATCH]
            await self._run("project", tenant_id, {**fields, "covered": batch}, _Projected)

    async def _run(
        self, name: str, tenant_id: UUID, fields: dict[str, object], reply_type: type[_Reply]
    ) -> _Reply:
        """Run one script; wait for a turn first, so that only Redis counts against the deadline."""
        async with self._turns:
            if not self._breaker.allows():
                raise StoreUnavailableError("Redis is being given time to recover")
            try:
                async with asyncio.timeout(self._deadline_s):
                    packed = await self._evaluate(self._scripts[name], tenant_id, fields)
            except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                self._lost_redis(error)
                raise StoreUnavailableError("Redis did not answer in time") from error
            except RedisError as error:
                _log.error("quota.script_failed", script=name, error=str(error))
                raise StoreUnavailableError("Redis refused a quota script") from error
        self._breaker.succeeded()
        return msgspec.msgpack.decode(packed, type=reply_type)

    async def _evaluate(
        self, script: AsyncScript, tenant_id: UUID, fields: dict[str, object]
    ) -> bytes:
        """Evaluate, once more on new connections if the first attempt found a broken one."""
        try:
            return await self._evaluate_once(script, tenant_id, fields)
        except (RedisConnectionError, OSError):
            self._run_id = ""
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            return await self._evaluate_once(script, tenant_id, fields)

    async def _evaluate_once(
        self, script: AsyncScript, tenant_id: UUID, fields: dict[str, object]
    ) -> bytes:
        if not self._run_id:
            await self._meet_server()
        keys = [f"tenora:quota:{{{tenant_id}}}:{key}" for key in _KEYS]
        call = {**fields, "now_ms": self._clock_ms(), "run_id": self._run_id}
        packed: bytes = await script(keys=keys, args=[msgspec.msgpack.encode(call)])
        return packed

    async def _meet_server(self) -> None:
        """Learn which server this is and give it the scripts; one caller does it for all."""
        async with self._meeting:
            if not self._run_id:
                for script in self._scripts.values():
                    await self._redis.script_load(script.script)
                self._run_id = str((await self._redis.info("server"))["run_id"])

    def _lost_redis(self, error: Exception) -> None:
        was_open = self._breaker.is_open
        self._run_id = ""
        self._breaker.failed()
        if self._breaker.is_open and not was_open:
            _log.error("quota.store_unavailable", error=type(error).__name__)


def _source(name: str) -> str:
    """The text of one script, behind the functions that all of them share."""
    folder = files(__package__) / "scripts"
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))
