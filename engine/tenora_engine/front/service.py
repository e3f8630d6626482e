"""An engine replica as an `EngineClient` in the front's own process.

Ties the core, the running requests, the journal and the text work together; each has its file.
Nothing here blocks the event loop.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog

from tenora_engine.config import EngineConfig
from tenora_engine.core.messages import (
    CoreFailed,
    CoreReady,
    FromCore,
    Reply,
    StepOutput,
)
from tenora_engine.front.core_calls import CoreCalls
from tenora_engine.front.core_process import Core
from tenora_engine.front.generations import Generations
from tenora_engine.front.journal import UsageJournal
from tenora_engine.front.progress import TICK_S, CoreProgress, StallLimits
from tenora_engine.front.replica import ModelFiles, Replica, load_model_files
from tenora_engine.front.running_request import Emit
from tenora_engine.protocol.errors import (
    EngineError,
    EngineOverloadedError,
    EngineUnavailableError,
)
from tenora_engine.protocol.inbox import EventInbox
from tenora_engine.protocol.messages import (
    AdapterRef,
    AdapterReport,
    AdapterState,
    EngineInfo,
    Finished,
    GenerateEvent,
    GenerateRequest,
    Health,
    InspectRequest,
    PreparedPrompt,
    PrepareRequest,
    ProbeReport,
    PurgeReceipt,
    UsageBatch,
)

log = structlog.get_logger(__name__)

MAX_JOURNAL_BACKLOG = 100_000
"""Unacknowledged records from which on new work is refused rather than risked unbilled."""
MAX_PREPARING = 256
PREPARE_THREADS = 2
PROBE_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Dear customer, thank you for",
    "1, 2, 3, 5, 8,",
)


class Inspector(Protocol):
    """Validates uploads; the real one is `adapter_files.inspection.AdapterInspector`."""

    async def inspect(self, request: InspectRequest) -> AdapterReport:
        """Judge one upload."""
        ...


class EngineFront:
    """Call `start` once, and `close` at the end; see `EngineClient` for everything else."""

    def __init__(
        self,
        config: EngineConfig,
        core: Core,
        *,
        inspector: Inspector | None = None,
        stall_limits: StallLimits | None = None,
        max_journal_backlog: int = MAX_JOURNAL_BACKLOG,
    ) -> None:
        self._config = config
        self._core = core
        self._inspector = inspector
        self._max_journal_backlog = max_journal_backlog
        self._journal = UsageJournal(
            config.journal_path, replica_id=config.replica_id, now_ms=_now_ms
        )
        self._generations = Generations(
            send=core.send,
            journal=self._journal,
            replica_id=config.replica_id,
            limit=config.max_running_sequences + config.max_waiting_sequences,
            now_ms=_now_ms,
        )
        self._calls = CoreCalls(core.send)
        self._progress = CoreProgress(stall_limits or StallLimits())
        self._files: ModelFiles | None = None
        self._ready: CoreReady | None = None
        self._replica: Replica | None = None
        self._not_serving_because = "the engine is starting"
        self._was_ready = False
        self._refused = asyncio.Event()
        self._is_closing = False
        self._ticker: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="prepare")
        self._num_preparing = 0

    async def start(self) -> None:
        """Open the journal, start the core, read the model folder. Serving follows by itself.

        Raises:
            EngineUnavailableError: the journal cannot be opened.
            OSError, ValueError: the model folder cannot be served.
        """
        await self._journal.open()
        await self._core.start(self._on_message, self._on_core_lost)
        self._ticker = asyncio.create_task(self._tick(), name="front-ticker")
        self._files = await asyncio.to_thread(load_model_files, self._config)
        self._assemble()

    async def until_refused(self) -> str:
        """Return, with the reason, if the core refuses its settings before it ever served.

        Another start would end the same way; a core that did serve is started again instead.
        """
        await self._refused.wait()
        return self._not_serving_because

    async def close(self) -> None:
        """End running requests with a record each, then core and journal. Idempotent."""
        self._is_closing = True
        self._not_serving_because = "the engine is shutting down"
        error = EngineUnavailableError("The engine is shutting down.", code="shutdown")
        self._generations.fail_all(error)
        self._calls.fail_all(error)
        await self._generations.settle()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._core.stop()
        await self._journal.close()
        self._pool.shutdown(wait=False)

    # EngineClient

    async def describe(self) -> EngineInfo:
        """See `EngineClient.describe`."""
        return self._require_replica().info

    async def health(self) -> Health:
        """See `EngineClient.health`."""
        refusal = self._refusal()
        return self._progress.health(
            serving=refusal is None,
            reason="ok" if refusal is None else refusal.message,
            journal_backlog=self._journal.backlog,
        )

    async def prepare(self, request: PrepareRequest) -> PreparedPrompt:
        """See `EngineClient.prepare`."""
        encoder = self._require_replica().encoder
        if self._num_preparing >= MAX_PREPARING:
            raise EngineOverloadedError("Too many prompts are being prepared.", retry_after_s=1.0)
        self._num_preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, encoder.encode, request
            )
        finally:
            self._num_preparing -= 1

    def submit(self, request: GenerateRequest, emit: Emit) -> None:
        """Start a request whose events go to `emit`, on this event loop, as steps bring them.

        Raises:
            EngineError: refused; there is no record and `emit` is never called.
        """
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        self._generations.submit(request, emit, self._require_replica())

    def abort(self, request_id: str) -> None:
        """Stop a request that `submit` accepted; nothing more is emitted. Idempotent."""
        self._generations.abort(request_id)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `EngineClient.generate`."""
        inbox = EventInbox()
        self.submit(request, inbox.put)
        is_over = False
        try:
            while not is_over:
                event = await inbox.get()
                is_over = isinstance(event, Finished)
                yield event
        except EngineError:
            is_over = True
            raise
        finally:
            if not is_over:
                self.abort(request.request_id)

    async def inspect_adapter(self, request: InspectRequest) -> AdapterReport:
        """See `EngineClient.inspect_adapter`."""
        if self._inspector is None:
            from tenora_engine.adapter_files.inspection import AdapterInspector

            self._inspector = AdapterInspector(self._config)
        return await self._inspector.inspect(request)

    async def probe_adapter(self, ref: AdapterRef) -> ProbeReport:
        """See `EngineClient.probe_adapter`."""
        tokenizer = self._require_replica().files.tokenizer
        prompts = tuple(tuple(tokenizer.encode(text)) for text in PROBE_PROMPTS)
        return await self._calls.probe(ref.digest, prompts)

    async def adapter_states(self) -> tuple[AdapterState, ...]:
        """See `EngineClient.adapter_states`."""
        self._require_replica()
        return await self._calls.adapters()

    async def purge_scope(self, cache_scope: bytes) -> PurgeReceipt:
        """See `EngineClient.purge_scope`."""
        roots = self._require_replica().cache_roots.roots_of(cache_scope)
        if not roots:
            return PurgeReceipt(num_blocks_zeroed=0, completed_at_ms=_now_ms())
        return await self._calls.purge(roots)

    async def pull_usage(self, *, limit: int) -> UsageBatch:
        """See `EngineClient.pull_usage`."""
        return await self._journal.pull(limit=limit)

    async def acknowledge_usage(self, *, up_to_seq: int) -> None:
        """See `EngineClient.acknowledge_usage`."""
        await self._journal.acknowledge(up_to_seq=up_to_seq)

    # The core speaks

    def _on_message(self, message: FromCore) -> None:
        match message:
            case StepOutput():
                self._progress.report(message.stats)
                self._generations.advance(message.sequences)
            case Reply():
                self._calls.answer(message)
            case CoreReady():
                self._ready = message
                self._assemble()
            case CoreFailed():
                self._not_serving_because = message.error.message
                if not self._was_ready:
                    self._refused.set()

    def _on_core_lost(self, reason: str) -> None:
        self._ready = self._replica = None
        self._not_serving_because = reason
        self._progress.reset()
        error = EngineUnavailableError("The engine's core was lost; a retry may succeed.")
        self._generations.fail_all(error)
        self._calls.fail_all(error)

    def _assemble(self) -> None:
        """Serve once the core is ready and the model folder is read."""
        if self._files is not None and self._ready is not None:
            self._progress.reset()
            self._replica = Replica(self._config, self._files, self._ready)
            self._was_ready = True
            log.info("engine_ready", base_model=self._config.base_model)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._ready is not None:
                self._progress.tick()
                if self._progress.is_hopeless():
                    log.error("core_stalled")
                    self._progress.reset()
                    self._core.kill()
            if not self._journal.is_writable:
                await self._journal.check_writable()

    # Would a request be served?

    def _refusal(self) -> EngineError | None:
        """Why a request would not be served now, if so."""
        if self._replica is None or self._is_closing:
            return EngineUnavailableError(_sentence(self._not_serving_because))
        has_work = len(self._generations) > 0 or self._calls.are_waiting
        if self._progress.is_stalled(has_work=has_work):
            return EngineUnavailableError("The engine's core makes no progress.")
        if not self._journal.is_writable:
            return EngineUnavailableError(
                "The engine cannot write its usage journal.", code="journal_unavailable"
            )
        if self._journal.backlog >= self._max_journal_backlog:
            return EngineOverloadedError(
                "Too many usage records wait for settlement.",
                code="usage_backlog_full",
                retry_after_s=5.0,
            )
        return None

    def _require_replica(self) -> Replica:
        if self._replica is None or self._is_closing:
            raise EngineUnavailableError(_sentence(self._not_serving_because))
        return self._replica


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}{'' if reason.endswith('.') else '.'}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
