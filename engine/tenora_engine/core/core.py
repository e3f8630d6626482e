"""The core: `step()` is schedule, run, sample, publish."""

import time

from tenora_engine.core.adapters.base import Residency
from tenora_engine.core.kv_cache.block_pool import BlockPool
from tenora_engine.core.messages import (
    AbortSequence,
    AddSequence,
    CoreStats,
    ProbeAdapter,
    PurgeRoots,
    QueryAdapters,
    Reply,
    SequenceOutput,
    Shutdown,
    StepOutput,
    ToCore,
)
from tenora_engine.core.model_runner.base import ModelRunner
from tenora_engine.core.probe import Prober
from tenora_engine.core.scheduler.scheduler import ScheduledSequence, Scheduler
from tenora_engine.core.sequence import Sequence, Status
from tenora_engine.protocol.errors import (
    AdapterUnavailableError,
    ContextLengthError,
    EngineError,
    EngineOverloadedError,
    ErrorPayload,
)
from tenora_engine.protocol.messages import PurgeReceipt


class Core:
    """State of one core process between messages and steps. Not thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        residency: Residency,
        *,
        context_length: int,
        max_waiting_sequences: int,
    ) -> None:
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.pool
        self._runner = runner
        self._residency = residency
        self._context_length = context_length
        self._max_waiting = max_waiting_sequences
        self._prober = Prober(runner, self._pool, residency, scheduler.limits.block_size)
        self._num_arrivals = 0
        self._num_steps = 0
        self._refused: list[SequenceOutput] = []
        self.is_shutting_down = False

    @property
    def has_work(self) -> bool:
        """Whether `step` should be called again at once."""
        return self._scheduler.has_work or self._prober.has_work or bool(self._refused)

    @property
    def waits_for_adapters(self) -> bool:
        """Whether all that could be done next depends on a load that is under way."""
        return self._residency.is_loading and not self._scheduler.running

    def handle(self, message: ToCore) -> Reply | None:
        """Act on one message; calls that can be answered at once return their reply."""
        match message:
            case AddSequence():
                self._add(message)
            case AbortSequence():
                sequence = self._scheduler.find(message.request_id)
                if sequence is not None:
                    self._scheduler.finish(sequence)
            case ProbeAdapter():
                self._prober.add(message)
            case PurgeRoots():
                return self._purge(message)
            case QueryAdapters():
                states = self._residency.states(lambda: time.time() * 1e3)
                return Reply(call_id=message.call_id, adapters=states)
            case Shutdown():
                self.is_shutting_down = True
        return None

    def _add(self, request: AddSequence) -> None:
        sequence = Sequence.of(request, now=time.monotonic(), arrival_index=self._num_arrivals)
        self._num_arrivals += 1
        # The last sampled token is never fed back, so it needs no place of its own.
        capacity = min(
            self._context_length, self._pool.num_blocks * self._scheduler.limits.block_size + 1
        )
        room = capacity - sequence.num_prompt_tokens
        if room < 1:
            self._refuse(sequence, _too_long(sequence.num_prompt_tokens, capacity - 1))
        elif len(self._scheduler.waiting) >= self._max_waiting:
            error = EngineOverloadedError("too many requests are waiting", retry_after_s=1.0)
            self._refuse(sequence, error)
        else:
            sequence.max_tokens = min(request.max_tokens, room)
            self._scheduler.add(sequence)

    def _refuse(self, sequence: Sequence, error: EngineError) -> None:
        sequence.status = Status.FINISHED
        self._refused.append(_failed(sequence, error))

    def _purge(self, message: PurgeRoots) -> Reply:
        count = self._pool.purge(message.cache_roots)
        self._zero_purged()
        receipt = PurgeReceipt(num_blocks_zeroed=count, completed_at_ms=int(time.time() * 1e3))
        return Reply(call_id=message.call_id, purge=receipt)

    def _zero_purged(self) -> None:
        blocks = self._pool.take_blocks_to_zero()
        if blocks:
            self._runner.zero_blocks(blocks)

    def advance_probe(self) -> Reply | None:
        """Do one prompt of a waiting probe, if any; returns the reply of one that is done."""
        return self._prober.advance() if self._prober.has_work else None

    def step(self) -> StepOutput:
        """Advance every scheduled sequence by one chunk or one token."""
        failed = self._take_refused_and_failed()
        scheduled = self._scheduler.schedule(time.monotonic())
        self._zero_purged()
        tokens = self._runner.run(scheduled) if scheduled else []
        outputs = self._publish(scheduled, tokens)
        self._num_steps += bool(scheduled)
        return StepOutput(sequences=(*failed, *outputs), stats=self.stats())

    def _take_refused_and_failed(self) -> list[SequenceOutput]:
        refused, self._refused = self._refused, []
        failed = self._scheduler.take_failed()
        return refused + [_failed(sequence, error) for sequence, error in failed]

    def _publish(
        self, scheduled: list[ScheduledSequence], tokens: list[int | None]
    ) -> list[SequenceOutput]:
        now = time.monotonic()
        sampled = iter(tokens)
        outputs = []
        for item in scheduled:
            samples = item.samples
            self._scheduler.record_computed(item)
            if samples:
                outputs.append(self._publish_token(item.sequence, next(sampled), now))
        return outputs

    def _publish_token(self, sequence: Sequence, token: int | None, now: float) -> SequenceOutput:
        if token is None:
            self._scheduler.finish(sequence)
            return _failed(
                sequence,
                AdapterUnavailableError(
                    "the adapter produced numbers that are not finite", code="non_finite_output"
                ),
            )
        is_first = sequence.clock.first_token is None
        if is_first:
            sequence.clock.first_token = now
        self._scheduler.record_sampled(sequence, token)
        reason = None
        if token in sequence.request.stop_token_ids:
            reason = "stop"
        elif sequence.num_output_tokens >= sequence.max_tokens:
            reason = "length"
        if reason is not None:
            self._scheduler.finish(sequence)
        return SequenceOutput(
            request_id=sequence.request.request_id,
            token_ids=(token,),
            finish_reason=reason,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            num_computed_tokens=sequence.total_computed_tokens,
            num_preemptions=sequence.num_preemptions,
            timings=sequence.clock.timings(now) if is_first or reason else None,
        )

    def stats(self) -> CoreStats:
        """Counters after the last step."""
        return CoreStats(
            steps=self._num_steps,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=self._pool.num_blocks,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_running_adapters=self._scheduler.num_running_adapters,
        )

    def close(self) -> None:
        """Stop background work."""
        self._residency.close()


def _too_long(num_prompt_tokens: int, capacity: int) -> ContextLengthError:
    return ContextLengthError(
        f"the prompt has {num_prompt_tokens} tokens; at most {capacity} fit with one output token",
        param="messages",
    )


def _failed(sequence: Sequence, error: EngineError) -> SequenceOutput:
    return SequenceOutput(
        request_id=sequence.request.request_id,
        error=ErrorPayload.of(error),
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_computed_tokens=sequence.total_computed_tokens,
        num_preemptions=sequence.num_preemptions,
        timings=sequence.clock.timings(time.monotonic()),
    )
