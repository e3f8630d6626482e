"""Keeps the reservations of this process alive: a hold lives exactly as long as its request runs.

If the process dies, nobody renews, and the store frees money and concurrency within the lease.
"""

import asyncio
from uuid import UUID

import structlog

from tenora_platform.quotas.store import QuotaStore, ReserveCall

RENEW_EVERY_S = 10.0
_log = structlog.get_logger(__name__)


class LeaseKeeper:
    """Renews every reservation between `hold` and `drop`, in one batch per tenant.

    A reservation that the store lost (restarted empty, or this process stood still for longer
    than a lease) is put back, because its request is running.
    """

    def __init__(self, store: QuotaStore, *, renew_every_s: float = RENEW_EVERY_S) -> None:
        self._store = store
        self._renew_every_s = renew_every_s
        self._held: dict[UUID, dict[str, ReserveCall]] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def num_held(self) -> int:
        """How many reservations are being renewed."""
        return sum(len(calls) for calls in self._held.values())

    def start(self) -> None:
        """Begin renewing, on the running event loop."""
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.create_task(self._run(), name="quota-lease-keeper")

    async def stop(self) -> None:
        """Stop renewing. What is still held ends with its lease."""
        if self._task is not None:
            # Not cancelled: a client library may swallow a cancellation that meets its time-out.
            self._stopping.set()
            await asyncio.wait((self._task,))
            self._task = None

    def hold(self, tenant_id: UUID, call: ReserveCall) -> None:
        """Renew this reservation from now on."""
        self._held.setdefault(tenant_id, {})[call.request_id] = call

    def drop(self, tenant_id: UUID, request_id: str) -> None:
        """Renew it no more. Unknown ids are ignored."""
        calls = self._held.get(tenant_id, {})
        calls.pop(request_id, None)
        if not calls:
            self._held.pop(tenant_id, None)

    async def renew_all(self) -> None:
        """Renew everything once. A tenant that fails is logged and tried again next time."""
        for tenant_id in tuple(self._held):
            try:
                await self._renew(tenant_id)
            except Exception as error:  # noqa: BLE001 - a dead renewer would end every hold
                _log.warning("quota.renewal_failed", error=type(error).__name__)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._renew_every_s):
                    await self._stopping.wait()
            except TimeoutError:
                await self.renew_all()

    async def _renew(self, tenant_id: UUID) -> None:
        lost = await self._store.renew(tenant_id, tuple(self._held.get(tenant_id, ())))
        for request_id in lost:
            call = self._held.get(tenant_id, {}).get(request_id)
            if call is not None:
                _log.warning("quota.reservation_restored", request_id=request_id)
                await self._store.reserve(tenant_id, call)
