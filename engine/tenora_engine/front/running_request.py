"""One request while it runs: its text so far, its counts, and the record it will leave."""

import time
from collections.abc import Callable

import msgspec

from tenora_engine.core.messages import SequenceOutput
from tenora_engine.front.journal import REPLICA_LOST
from tenora_engine.protocol.errors import EngineError
from tenora_engine.protocol.messages import (
    Delta,
    ExecutionIdentity,
    FinishReason,
    GenerateEvent,
    GenerateRequest,
    Outcome,
    Timings,
    Usage,
    UsageRecord,
)
from tenora_engine.text.answer_text import AnswerText

CHECKPOINT_TOKENS = 64

Emit = Callable[[GenerateEvent | EngineError], None]
"""Takes a request's events in order: deltas, then one `Finished` or one error."""


class RunningRequest:
    """State only; `EngineFront` decides. Counts never include tokens after a stop string."""

    def __init__(
        self,
        request: GenerateRequest,
        *,
        emit: Emit,
        answer: AnswerText,
        identity: ExecutionIdentity,
        now_ms: int,
    ) -> None:
        self.request = request
        self.identity = identity
        self.is_over = False
        self.started_at_ms = now_ms
        self._emit = emit
        self._answer = answer
        self._started = time.monotonic()
        self._held: list[GenerateEvent | EngineError] | None = []
        self._completion_tokens = 0
        self._next_checkpoint = CHECKPOINT_TOKENS
        self._last = SequenceOutput(request_id=request.request_id)
        self._timings = Timings()

    def add(self, output: SequenceOutput) -> tuple[Delta, FinishReason | None]:
        """Take what a step added; the text it made, and how the output ended if it did."""
        piece = self._answer.push(output.token_ids)
        self._completion_tokens += piece.num_tokens
        self._last = output
        self._timings = output.timings or self._timings
        text = piece.text
        reason: FinishReason | None = None
        if piece.stopped:
            reason = "stop"
        elif output.finish_reason is not None:
            rest = self._answer.flush()
            text += rest.text
            reason = "length" if output.finish_reason == "length" and not rest.stopped else "stop"
        return Delta(text=text, token_ids=output.token_ids[: piece.num_tokens]), reason

    def emit(self, event: GenerateEvent | EngineError) -> None:
        """Pass an event to the reader, or hold it until `release`."""
        if self._held is None:
            self._emit(event)
        else:
            self._held.append(event)

    def release(self) -> None:
        """The request is durably noted: what was held, and what follows, may leave."""
        held, self._held = self._held or [], None
        for event in held:
            self._emit(event)

    def is_checkpoint_due(self) -> bool:
        """True once for every `CHECKPOINT_TOKENS` sampled tokens."""
        if self._completion_tokens < self._next_checkpoint:
            return False
        self._next_checkpoint = self._completion_tokens + CHECKPOINT_TOKENS
        return True

    def usage(self) -> Usage:
        """Counts so far."""
        adapter = self.request.adapter
        return Usage(
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=self._completion_tokens,
            cached_prompt_tokens=self._last.num_cached_tokens,
            computed_tokens=self._last.num_computed_tokens,
            preemptions=self._last.num_preemptions,
            adapter_digest=adapter.digest if adapter is not None else None,
        )

    def timings(self) -> Timings:
        """The core's phases, and the whole time since acceptance."""
        elapsed_ms = (time.monotonic() - self._started) * 1000
        return msgspec.structs.replace(self._timings, total_ms=elapsed_ms)

    def record(
        self, *, replica_id: str, outcome: Outcome, error_code: str | None, now_ms: int
    ) -> UsageRecord:
        """The usage record if the request ended now; the journal gives `seq`."""
        return UsageRecord(
            replica_id=replica_id,
            seq=0,
            request_id=self.request.request_id,
            outcome=outcome,
            usage=self.usage(),
            timings=self.timings(),
            identity=self.identity,
            execution_hash=self.identity.execution_hash(),
            started_at_ms=self.started_at_ms,
            completed_at_ms=now_ms,
            attribution=self.request.attribution,
            error_code=error_code,
            estimated=error_code == REPLICA_LOST,
        )
