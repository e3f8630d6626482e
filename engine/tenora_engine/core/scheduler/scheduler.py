"""Continuous batching: who runs in the next step, with how many tokens.

A step's token budget goes to decodes first and then to prefill chunks. When blocks run out, the
running sequence that arrived last is preempted and recomputed later. Waiting sequences start in
fairness order as soon as their adapter is resident, a slot and blocks are there.
"""

from dataclasses import dataclass
from typing import Protocol

from tenora_engine.core.kv_cache.block_hash import extend_hashes
from tenora_engine.core.kv_cache.block_pool import BlockPool
from tenora_engine.core.scheduler.fairness import VirtualTokenCounters
from tenora_engine.core.scheduler.waiting import WaitingQueue
from tenora_engine.core.sequence import Sequence, Status
from tenora_engine.protocol.errors import EngineError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one step; counts of sequences, tokens, adapters and slots per block."""

    max_running_sequences: int
    max_step_tokens: int
    max_device_adapters: int
    block_size: int


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """`num_tokens` pending tokens of `sequence`, from `sequence.num_computed_tokens` on."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step ends with a new token for this sequence."""
        return self.num_tokens == self.sequence.num_pending_tokens


class AdapterAvailability(Protocol):
    """What the scheduler asks of adapter residency. No call blocks."""

    def is_resident(self, digest: str) -> bool:
        """Whether a step may use the adapter now; starts loading it if not."""
        ...

    def load_error(self, digest: str) -> EngineError | None:
        """Why the adapter cannot be loaded, if so."""
        ...

    def acquire(self, digest: str) -> None:
        """One more running sequence needs the adapter."""
        ...

    def release(self, digest: str) -> None:
        """One running sequence fewer needs it."""
        ...


class Scheduler:
    """Waiting and running sequences and the blocks they hold. Not thread-safe."""

    def __init__(
        self, limits: SchedulerLimits, pool: BlockPool, adapters: AdapterAvailability
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.running: list[Sequence] = []
        self.counters = VirtualTokenCounters()
        self.waiting = WaitingQueue(self.counters)
        self._adapters = adapters
        self._sequences: dict[str, Sequence] = {}
        self._running_adapters: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self._sequences)

    @property
    def num_running_adapters(self) -> int:
        """Distinct adapters of the running sequences."""
        return len(self._running_adapters)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        key = sequence.request.fairness_key
        active = self._active_keys()
        if key not in active:
            self.counters.lift(key, active)
        self._sequences[sequence.request.request_id] = sequence
        self.waiting.add(sequence)

    def _active_keys(self) -> set[str]:
        return self.waiting.keys() | {s.request.fairness_key for s in self.running}

    def find(self, request_id: str) -> Sequence | None:
        """The unfinished sequence of a request, if any."""
        return self._sequences.get(request_id)

    def schedule(self, now: float) -> list[ScheduledSequence]:
        """Choose the next step and give it its blocks. Empty when nothing can run.

        Mutates block tables and moves sequences between waiting and running. Each scheduled
        sequence must be passed to `record_computed` after the step has run.
        """
        scheduled, budget, preempted = self._continue_running()
        if not preempted:
            self._admit_waiting(scheduled, budget, now)
        return scheduled

    def _continue_running(self) -> tuple[list[ScheduledSequence], int, bool]:
        scheduled: list[ScheduledSequence] = []
        budget = self.limits.max_step_tokens
        decodes_left = sum(s.num_pending_tokens == 1 for s in self.running)
        preempted = False
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            index += 1
            if sequence.num_pending_tokens == 1:
                decodes_left -= 1
                num_tokens = min(1, budget)
            else:
                num_tokens = min(sequence.num_pending_tokens, budget - decodes_left)
            if num_tokens <= 0:
                continue
            while not self._grow(sequence, num_tokens):
                preempted = True
                victim = self.running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            if sequence.status is Status.RUNNING:
                scheduled.append(ScheduledSequence(sequence, num_tokens))
                budget -= num_tokens
        return scheduled, budget, preempted

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give `sequence` the blocks for its next `num_tokens`, or change nothing."""
        size = self.limits.block_size
        total = -(-(sequence.num_computed_tokens + num_tokens) // size)
        missing = total - len(sequence.block_table)
        if missing > 0:
            if not self.pool.can_allocate(missing):
                return False
            sequence.block_table += self.pool.allocate(missing)
        return True

    def _admit_waiting(self, scheduled: list[ScheduledSequence], budget: int, now: float) -> None:
        if not len(self.waiting):
            return
        for sequence in self.waiting.in_turn():
            if budget <= 0 or len(self.running) >= self.limits.max_running_sequences:
                return
            if not self._adapter_admits(sequence, now):
                continue
            num_tokens = self._try_start(sequence, budget)
            if num_tokens == 0:
                return  # nobody overtakes a sequence that waits for memory
            self._start(sequence, now)
            scheduled.append(ScheduledSequence(sequence, num_tokens))
            budget -= num_tokens

    def _adapter_admits(self, sequence: Sequence, now: float) -> bool:
        digest = sequence.request.adapter_digest
        if digest is None:
            return True
        if not self._adapters.is_resident(digest):
            return False
        if sequence.clock.adapter_ready is None:
            sequence.clock.adapter_ready = now
        return (
            digest in self._running_adapters
            or len(self._running_adapters) < self.limits.max_device_adapters
        )

    def _try_start(self, sequence: Sequence, budget: int) -> int:
        """Match the prefix cache and allocate the first chunk; returns its tokens, or 0."""
        size = self.limits.block_size
        extend_hashes(sequence.block_hashes, sequence.request.cache_root, sequence.token_ids, size)
        # The last token is always computed: its logits are what the next token comes from.
        matchable = (len(sequence.token_ids) - 1) // size
        sequence.block_table = self.pool.match_prefix(sequence.block_hashes[:matchable])
        sequence.num_registered_blocks = len(sequence.block_table)
        sequence.num_computed_tokens = len(sequence.block_table) * size
        num_tokens = min(sequence.num_pending_tokens, budget)
        if not self._grow(sequence, num_tokens):
            self._drop_blocks(sequence)
            return 0
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        return num_tokens

    def _start(self, sequence: Sequence, now: float) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        if sequence.clock.first_scheduled is None:
            sequence.clock.first_scheduled = now
        digest = sequence.request.adapter_digest
        if digest is not None:
            self._running_adapters[digest] = self._running_adapters.get(digest, 0) + 1
            self._adapters.acquire(digest)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._drop_blocks(sequence)
        digest = sequence.request.adapter_digest
        if digest is not None:
            self._adapters.release(digest)
            self._running_adapters[digest] -= 1
            if not self._running_adapters[digest]:
                del self._running_adapters[digest]

    def _drop_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0

    def _preempt(self, sequence: Sequence) -> None:
        self._stop_running(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.waiting.add(sequence)

    def record_computed(self, scheduled: ScheduledSequence) -> None:
        """The step has run: advance the sequence and publish its full blocks to the cache."""
        sequence, request = scheduled.sequence, scheduled.sequence.request
        sequence.num_computed_tokens += scheduled.num_tokens
        sequence.total_computed_tokens += scheduled.num_tokens
        if scheduled.num_tokens > 1 or sequence.num_output_tokens == 0:
            self.counters.charge_prompt(request.fairness_key, scheduled.num_tokens, request.weight)
        size = self.limits.block_size
        num_full = sequence.num_computed_tokens // size
        if num_full > sequence.num_registered_blocks:
            extend_hashes(sequence.block_hashes, request.cache_root, sequence.token_ids, size)
            for index in range(sequence.num_registered_blocks, num_full):
                self.pool.register(
                    sequence.block_table[index], sequence.block_hashes[index], request.cache_root
                )
            sequence.num_registered_blocks = num_full

    def record_sampled(self, sequence: Sequence, token_id: int) -> None:
        """Append a sampled token."""
        sequence.token_ids.append(token_id)
        self.counters.charge_output(sequence.request.fairness_key, 1, sequence.request.weight)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence, however it came to that, and free what it holds."""
        if sequence.status is Status.RUNNING:
            self._stop_running(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self._sequences.pop(sequence.request.request_id, None)
        self.counters.forget_idle(self._active_keys())

    def take_failed(self) -> list[tuple[Sequence, EngineError]]:
        """End and return the waiting sequences whose adapter cannot be loaded."""
        failed = []
        for sequence in list(self.waiting.in_turn()):
            digest = sequence.request.adapter_digest
            error = self._adapters.load_error(digest) if digest is not None else None
            if error is not None:
                self.finish(sequence)
                failed.append((sequence, error))
        return failed
