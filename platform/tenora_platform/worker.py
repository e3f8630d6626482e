"""The background process: pulls usage from an engine, settles it, and tells admission.

The order makes it safe to die anywhere: pull, commit, release holds, then acknowledge. Whatever
was not acknowledged comes again, and every step before that is idempotent.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import structlog

from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.errors import EngineError
from tenora_engine.protocol.remote import RemoteEngine
from tenora_platform.billing.ledger import BudgetLedger
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.db.session import Database
from tenora_platform.errors import PlatformError
from tenora_platform.kit.clock import Clock, SystemClock
from tenora_platform.observability.logging import configure_logging
from tenora_platform.quotas.limits import ScopeKind
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.service import QuotaService
from tenora_platform.settings import Settings
from tenora_platform.usage.settlement import Settlement, SettlementService

BATCH_RECORDS = 500
IDLE_S = 2.0
"""The pause after a batch that was not full: a batch costs what ten of its records do."""
MIN_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0

_log = structlog.get_logger(__name__)


class QuotaProjector(Protocol):
    """What the worker needs of quotas; `QuotaService` is one. Both calls are idempotent."""

    async def settle(
        self,
        tenant_id: UUID,
        request_id: str,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        cost_nanousd: int,
    ) -> None:
        """Replace a reservation by what was used."""
        ...

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
        """Set what the ledger has booked against one budget, unless a newer seq is known."""
        ...


class Worker:
    """Settles one engine's usage. Several may run on the same engine without double charges."""

    def __init__(
        self, database: Database, engine: EngineClient, quotas: QuotaProjector, clock: Clock
    ) -> None:
        self._settlement = SettlementService(database, PriceBook(database, clock), clock)
        self._engine = engine
        self._quotas = quotas
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Settle until `stop` is called. An outage is waited out: nothing is lost or doubled."""
        backoff_s = MIN_BACKOFF_S
        while not self._stopping.is_set():
            try:
                num_records = await self.drain_once()
            except Exception as error:  # noqa: BLE001 - settlement must outlive any fault
                _report(error, backoff_s)
                # Jitter keeps workers from knocking on a recovering server all at once.
                await self._pause(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
                backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)
            else:
                backoff_s = MIN_BACKOFF_S
                if num_records < BATCH_RECORDS:
                    await self._pause(IDLE_S)

    def stop(self) -> None:
        """Let `run` return after the batch it is working on."""
        self._stopping.set()

    async def drain_once(self) -> int:
        """Settle one batch and acknowledge it; return how many records it held.

        Raises ServiceUnavailable (database, Redis) or EngineError; then the batch was not
        acknowledged, and the next call settles it again without effect on the books.
        """
        batch = await self._engine.pull_usage(limit=BATCH_RECORDS)
        if not batch.records:
            return 0
        settlement = await self._settlement.settle_batch(batch)
        _log_settlement(batch.replica_id, settlement)
        await self._project(settlement)
        # Not before Redis knows: a hold that is never covered would block its budget for ever.
        await self._engine.acknowledge_usage(up_to_seq=batch.records[-1].seq)
        return len(batch.records)

    async def _project(self, settlement: Settlement) -> None:
        for request in settlement.requests:
            await self._quotas.settle(
                request.tenant_id,
                request.request_id,
                prompt_tokens=request.prompt_tokens,
                completion_tokens=request.completion_tokens,
                cost_nanousd=request.cost_nanousd,
            )
        for projection in settlement.projections:
            await self._quotas.project_budget(
                projection.tenant_id,
                scope_kind=projection.scope_kind,
                scope_id=projection.scope_id,
                period_name=projection.period_name,
                committed_nanousd=projection.committed_nanousd,
                seq=projection.seq,
                covered_request_ids=projection.covered_request_ids,
            )

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _log_settlement(replica_id: str, settlement: Settlement) -> None:
    _log.info(
        "usage.settled",
        replica_id=replica_id,
        num_booked=settlement.num_booked,
        num_duplicates=settlement.num_duplicates,
        num_rejected=len(settlement.rejections),
    )
    for rejection in settlement.rejections:
        _log.error(
            "usage.rejected",
            replica_id=replica_id,
            request_id=rejection.record.request_id,
            replica_seq=rejection.record.seq,
            reason=rejection.reason,
            detail=rejection.detail,
        )


def _report(error: Exception, backoff_s: float) -> None:
    """An outage is a warning without a traceback; anything else is a fault of ours."""
    if isinstance(error, PlatformError | EngineError):
        _log.warning("worker.waiting", code=error.code, message=error.message, backoff_s=backoff_s)
    else:
        _log.error("worker.failed", backoff_s=backoff_s, exc_info=error)


async def run_worker(settings: Settings) -> None:
    """The composition root of a worker process: run until SIGTERM or SIGINT, then close."""
    configure_logging(settings.log_level)
    clock = SystemClock()
    database = Database(settings.database_url, pool_size=2)
    store = RedisQuotaStore(settings.redis_url)
    engine = RemoteEngine(settings.engine_url)
    quotas = QuotaService(store, BudgetLedger(database), clock)
    worker = Worker(database, engine, quotas, clock)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        await worker.run()
    finally:
        await engine.close()
        await store.close()
        await database.close()
