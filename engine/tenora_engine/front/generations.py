"""All running requests: from `submit` to an end that is durable before it is told.

There is no task per request: steps of the core, aborts, deadlines and losses all arrive as plain
calls, and a request's events leave through the function it came with.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from tenora_engine.core.messages import AbortSequence, AddSequence, SequenceOutput, ToCore
from tenora_engine.front.admission import deadline_exceeded, require_in_time, require_valid
from tenora_engine.front.journal import REPLICA_LOST, UsageJournal
from tenora_engine.front.replica import Replica
from tenora_engine.front.running_request import Emit, RunningRequest
from tenora_engine.protocol.errors import (
    EngineError,
    EngineOverloadedError,
    ErrorPayload,
    InvalidRequestError,
)
from tenora_engine.protocol.messages import (
    Delta,
    Finished,
    FinishReason,
    GenerateEvent,
    GenerateRequest,
    Outcome,
    UsageRecord,
)
from tenora_engine.text.answer_text import AnswerText
from tenora_engine.text.prompt_encoder import NO_TEMPLATE_VERSIONS

log = structlog.get_logger(__name__)

_MAX_SEED = 1 << 63


class Generations:
    """Owns the running requests of one front. Belongs to one event loop."""

    def __init__(
        self,
        *,
        send: Callable[[ToCore], None],
        journal: UsageJournal,
        replica_id: str,
        limit: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._send = send
        self._journal = journal
        self._replica_id = replica_id
        self._limit = limit
        self._now_ms = now_ms
        self._running: dict[str, RunningRequest] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Future[int]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def submit(self, request: GenerateRequest, emit: Emit, replica: Replica) -> None:
        """Accept a request and queue it in the core, or refuse it without a trace.

        Nothing is emitted before the request is durably noted as running.

        Raises:
            EngineError: the refusal; `emit` is never called then.
        """
        require_valid(request, replica)
        require_in_time(request, now_ms=self._now_ms())
        if request.request_id in self._running:
            raise _id_was_used()
        if len(self._running) >= self._limit:
            raise EngineOverloadedError("The engine's queue is full.", retry_after_s=1.0)
        running = RunningRequest(
            request,
            emit=emit,
            answer=AnswerText(
                replica.files.token_bytes,
                stops=request.sampling.stop,
                starts_text=request.template_version not in NO_TEMPLATE_VERSIONS,
            ),
            identity=replica.identity(request),
            now_ms=self._now_ms(),
        )
        begun = self._journal.begin(self._record(running, "error", REPLICA_LOST))
        self._running[request.request_id] = running
        begun.add_done_callback(partial(self._on_begun, running))
        self._watch_deadline(request)
        self._send(_sequence_of(request, replica))

    def abort(self, request_id: str) -> None:
        """The reader is gone: stop the work, keep the record, emit nothing more."""
        running = self._running.get(request_id)
        if running is not None:
            self._send(AbortSequence(request_id=request_id))
            self._end(running, "aborted")

    def advance(self, outputs: Iterable[SequenceOutput]) -> None:
        """Take in a step. Outputs of requests that are over are late, and ignored."""
        for output in outputs:
            running = self._running.get(output.request_id)
            if running is not None:
                self._advance(running, output)

    def fail_all(self, error: EngineError) -> None:
        """End everything by a fault of ours."""
        for running in list(self._running.values()):
            self._end(running, "error", ErrorPayload.of(error).to_error())

    async def settle(self) -> None:
        """Return once every ended request has its durable record."""
        while self._ending:
            await asyncio.wait(self._ending)

    def _advance(self, running: RunningRequest, output: SequenceOutput) -> None:
        delta, reason = running.add(output)
        if output.error is not None:
            self._end(running, "error", delta, output.error.to_error())
        elif reason is not None:
            if output.finish_reason is None:  # a stop string, which the core knows nothing of
                self._send(AbortSequence(request_id=output.request_id))
            self._end(running, reason, delta)
        else:
            if delta.text or delta.token_ids:
                running.emit(delta)
            if running.is_checkpoint_due():
                self._journal.checkpoint(self._record(running, "error", REPLICA_LOST))

    def _end(
        self, running: RunningRequest, outcome: Outcome, *last: GenerateEvent | EngineError
    ) -> None:
        """Write the record; when it is durable, emit what is `last`, and `Finished` if it is."""
        self._forget(running)
        error = last[-1] if last and isinstance(last[-1], EngineError) else None
        record = self._record(running, outcome, error.code if error else None)
        if outcome in ("stop", "length"):
            last = (*_non_empty(last), _finished(running, outcome, record))
        log.info(
            "request_ended",
            request_id=record.request_id,
            outcome=outcome,
            error_code=record.error_code,
            prompt_tokens=record.usage.prompt_tokens,
            completion_tokens=record.usage.completion_tokens,
        )
        done = self._journal.finish(record)
        self._ending.add(done)
        done.add_done_callback(partial(self._on_durable, running, last))

    def _on_begun(self, running: RunningRequest, begun: "asyncio.Future[bool]") -> None:
        error = begun.exception()
        if error is None and not begun.result():
            error = _id_was_used()
        if error is not None and not running.is_over:
            self._send(AbortSequence(request_id=running.request.request_id))
            self._forget(running)
            running.emit(_as_engine_error(error))
        running.release()

    def _on_durable(
        self,
        running: RunningRequest,
        last: tuple[GenerateEvent | EngineError, ...],
        done: "asyncio.Future[int]",
    ) -> None:
        self._ending.discard(done)
        error = done.exception()
        for event in last if error is None else (_as_engine_error(error),):
            running.emit(event)

    def _forget(self, running: RunningRequest) -> None:
        running.is_over = True
        request_id = running.request.request_id
        del self._running[request_id]
        timer = self._deadlines.pop(request_id, None)
        if timer is not None:
            timer.cancel()

    def _watch_deadline(self, request: GenerateRequest) -> None:
        if request.deadline_at_ms is not None:
            delay_s = (request.deadline_at_ms - self._now_ms()) / 1000
            self._deadlines[request.request_id] = asyncio.get_running_loop().call_later(
                delay_s, self._expire, request.request_id
            )

    def _expire(self, request_id: str) -> None:
        self._send(AbortSequence(request_id=request_id))
        self._end(self._running[request_id], "error", deadline_exceeded())

    def _record(
        self, running: RunningRequest, outcome: Outcome, error_code: str | None
    ) -> UsageRecord:
        return running.record(
            replica_id=self._replica_id,
            outcome=outcome,
            error_code=error_code,
            now_ms=self._now_ms(),
        )


def _sequence_of(request: GenerateRequest, replica: Replica) -> AddSequence:
    sampling = request.sampling
    digest = request.adapter.digest if request.adapter is not None else None
    seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
    return AddSequence(
        request_id=request.request_id,
        token_ids=request.token_ids,
        max_tokens=request.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=seed % _MAX_SEED,
        stop_token_ids=replica.stop_token_ids,
        adapter_digest=digest,
        cache_root=replica.cache_roots.root_of(request.cache_scope, digest),
        fairness_key=request.fairness_key,
        weight=request.weight,
        priority=request.priority,
    )


def _finished(running: RunningRequest, reason: FinishReason, record: UsageRecord) -> Finished:
    return Finished(
        reason=reason, usage=record.usage, timings=record.timings, identity=running.identity
    )


def _non_empty(
    events: Iterable[GenerateEvent | EngineError],
) -> tuple[GenerateEvent | EngineError, ...]:
    return tuple(
        event for event in events if not isinstance(event, Delta) or event.text or event.token_ids
    )


def _id_was_used() -> InvalidRequestError:
    return InvalidRequestError(
        "A request with this id is running or has run; every request needs an id of its own.",
        param="request_id",
    )


def _as_engine_error(error: BaseException) -> EngineError:
    return error if isinstance(error, EngineError) else EngineError("The engine failed.")
