"""A core without a model: follows a script of token ids over the real socket and messages.

In this process as `ScriptedCore`, which `EngineFront` takes in place of its child process; or as
a child process of its own: `python -m tests.support.scripted_core URL < config.json`.
"""

import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.asyncio

from tenora_engine.core.__main__ import die_with_parent
from tenora_engine.core.messages import (
    AbortSequence,
    AddSequence,
    CoreReady,
    CoreStats,
    FromCore,
    ProbeAdapter,
    PurgeRoots,
    QueryAdapters,
    Reply,
    SequenceOutput,
    Shutdown,
    StepOutput,
    ToCore,
    from_core_encoder,
    to_core_decoder,
)
from tenora_engine.front.core_link import CoreLink, MessageHandler
from tenora_engine.front.core_process import LossHandler
from tenora_engine.protocol.errors import EngineUnavailableError, ErrorPayload
from tenora_engine.protocol.messages import (
    AdapterRef,
    AdapterState,
    ProbeReport,
    PurgeReceipt,
    Timings,
)
from tests.support.tiny_tokenizer import MODEL_VOCAB_SIZE, byte_ids

BLOCK_SIZE, NUM_BLOCKS = 16, 256

Script = Callable[[AddSequence], Sequence[int]]


def say_hello(sequence: AddSequence) -> Sequence[int]:
    """The default script."""
    return byte_ids("Hello, this is a script.")


@dataclass
class _Sequence:
    add: AddSequence
    script: tuple[int, ...]
    num_cached: int
    done: int = 0


@dataclass
class ScriptedLoop:
    """One life: the step loop of the real core in miniature. Set the public fields at any time."""

    script: Script = say_hello
    step_interval_s: float = 0.001
    tokens_per_step: int = 1
    fail_after_tokens: int | None = None
    received: list[ToCore] = field(default_factory=list)
    is_frozen: bool = False
    context_length: int = 2048
    steps: int = 0

    def __post_init__(self) -> None:
        self._running: dict[str, _Sequence] = {}
        self._cached: defaultdict[bytes, set[tuple[int, ...]]] = defaultdict(set)
        self._digests: set[str] = set()

    async def run(self, url: str) -> None:
        """Connect, say ready, and step until shutdown."""
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.connect(url)
        try:
            await self._send(socket, self._ready())
            while await self._turn(socket):
                pass
        finally:
            socket.close(linger=0)

    async def _turn(self, socket: "zmq.asyncio.Socket") -> bool:
        wait_ms = 0 if self._running else 500
        while await socket.poll(wait_ms):
            message = to_core_decoder.decode(await socket.recv())
            self.received.append(message)
            if isinstance(message, Shutdown):
                return False
            reply = self._handle(message)
            if reply is not None:
                await self._send(socket, reply)
            wait_ms = 0
        while self.is_frozen:  # noqa: ASYNC110 - set by the test
            await asyncio.sleep(0.01)
        if self._running:
            await asyncio.sleep(self.step_interval_s)
        await self._send(socket, self._step())
        return True

    async def _send(self, socket: "zmq.asyncio.Socket", message: FromCore) -> None:
        await socket.send(from_core_encoder.encode(message))

    def _ready(self) -> CoreReady:
        return CoreReady(
            vocab_size=MODEL_VOCAB_SIZE,
            context_length=self.context_length,
            max_lora_rank=64,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            kernel_backend="scripted",
            attention_backend="scripted",
            weight_dtype="float32",
            kv_dtype="float32",
        )

    def _handle(self, message: ToCore) -> Reply | None:
        match message:
            case AddSequence():
                seen = self._cached[message.cache_root]
                num_cached = len(message.token_ids) - 1 if message.token_ids in seen else 0
                self._running[message.request_id] = _Sequence(
                    message, tuple(self.script(message)), num_cached
                )
                if message.adapter_digest:
                    self._digests.add(message.adapter_digest)
            case AbortSequence():
                self._running.pop(message.request_id, None)
            case ProbeAdapter():
                self._digests.add(message.digest)
                report = ProbeReport(
                    ref=AdapterRef(digest=message.digest),
                    finite=True,
                    max_logit_delta=1.0,
                    changed_token_share=len(message.prompts) / 8,
                )
                return Reply(call_id=message.call_id, probe=report)
            case PurgeRoots():
                purged = sum(len(self._cached.pop(root, ())) for root in message.cache_roots)
                receipt = PurgeReceipt(num_blocks_zeroed=purged, completed_at_ms=_now_ms())
                return Reply(call_id=message.call_id, purge=receipt)
            case QueryAdapters():
                states = tuple(self._state(digest) for digest in sorted(self._digests))
                return Reply(call_id=message.call_id, adapters=states)
            case _:
                pass
        return None

    def _step(self) -> StepOutput:
        self.steps += 1
        outputs = tuple(self._advance(sequence) for sequence in list(self._running.values()))
        return StepOutput(sequences=outputs, stats=self._stats())

    def _advance(self, sequence: _Sequence) -> SequenceOutput:
        add = sequence.add
        if self.fail_after_tokens is not None and sequence.done >= self.fail_after_tokens:
            del self._running[add.request_id]
            error = EngineUnavailableError("The core lost the sequence.")
            return SequenceOutput(request_id=add.request_id, error=ErrorPayload.of(error))
        is_first = sequence.done == 0
        tokens, reason = self._sample(sequence)
        if reason is not None:
            del self._running[add.request_id]
            self._cached[add.cache_root].add(add.token_ids)
        return SequenceOutput(
            request_id=add.request_id,
            token_ids=tuple(tokens),
            finish_reason=reason,
            num_cached_tokens=sequence.num_cached,
            num_computed_tokens=len(add.token_ids) - sequence.num_cached + sequence.done,
            timings=Timings(queue_ms=1.0, first_token_ms=2.0) if is_first or reason else None,
        )

    def _sample(self, sequence: _Sequence) -> tuple[list[int], str | None]:
        tokens: list[int] = []
        for _ in range(self.tokens_per_step):
            ends = sequence.done >= len(sequence.script)
            stop_token = sequence.add.stop_token_ids[0]
            tokens.append(stop_token if ends else sequence.script[sequence.done])
            sequence.done += 1
            if tokens[-1] in sequence.add.stop_token_ids:
                return tokens, "stop"
            if sequence.done == sequence.add.max_tokens:
                return tokens, "length"
        return tokens, None

    def _state(self, digest: str) -> AdapterState:
        return AdapterState(
            digest=digest, tier="device", size_bytes=1, num_running=0, last_used_at_ms=_now_ms()
        )

    def _stats(self) -> CoreStats:
        return CoreStats(
            steps=self.steps,
            num_running=len(self._running),
            num_waiting=0,
            num_blocks=NUM_BLOCKS,
            num_free_blocks=NUM_BLOCKS - len(self._running),
            num_cached_blocks=0,
            num_running_adapters=0,
        )


class ScriptedCore:
    """A `Core` for `EngineFront`, in this event loop. `loop` is the current life."""

    def __init__(self, run_dir: Path, loop: ScriptedLoop | None = None) -> None:
        self.loop = loop or ScriptedLoop()
        self._path = run_dir / "scripted.sock"
        self._tasks: list[asyncio.Task[None]] = []
        self._link: CoreLink | None = None
        self._on_message: MessageHandler
        self._on_lost: LossHandler

    async def start(self, on_message: MessageHandler, on_lost: LossHandler) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._link = CoreLink(self._path, on_message)
        self._tasks = [asyncio.create_task(self.loop.run(self._link.url))]

    def send(self, message: ToCore) -> None:
        if self._link is not None:
            self._link.send(message)

    def kill(self) -> None:
        """Die, and stay dead until `revive`."""
        for task in self._tasks:
            task.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._on_lost("killed by the test")

    async def revive(self) -> None:
        """Start a fresh life with the same script."""
        self.loop = ScriptedLoop(script=self.loop.script)
        await self.start(self._on_message, self._on_lost)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            self._link.close()
            self._link = None

    def aborts(self) -> list[str]:
        """Ids whose abort reached the core."""
        return [m.request_id for m in self.loop.received if isinstance(m, AbortSequence)]

    def adds(self) -> list[AddSequence]:
        """Sequences that reached the core."""
        return [m for m in self.loop.received if isinstance(m, AddSequence)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.stdin.buffer.read()
    slow = ScriptedLoop(script=lambda _: byte_ids("abcdefgh" * 100), step_interval_s=0.02)
    asyncio.run(slow.run(sys.argv[1]))
