"""Comparing an adapter with its base on fixed prompts, one forward pass at a time.

A probe is interleaved with the step loop: each turn computes one prompt, so running requests
wait for one small pass at most.
"""

from dataclasses import dataclass, field

import torch

from tenora_engine.core.adapters.base import Residency
from tenora_engine.core.kv_cache.block_pool import BlockPool
from tenora_engine.core.messages import ProbeAdapter, Reply
from tenora_engine.core.model_runner.base import ModelRunner
from tenora_engine.protocol.errors import EngineOverloadedError, ErrorPayload
from tenora_engine.protocol.messages import AdapterRef, ProbeReport


@dataclass(slots=True)
class Probe:
    """Progress of one `ProbeAdapter` call."""

    call: ProbeAdapter
    num_prompts_done: int = 0
    num_positions: int = 0
    num_changed: int = 0
    max_delta: float = 0.0
    is_finite: bool = True
    pinned: bool = field(default=False)


class Prober:
    """Queue of probes. `advance` does at most one prompt and returns a finished reply."""

    def __init__(
        self, runner: ModelRunner, pool: BlockPool, residency: Residency, block_size: int
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._residency = residency
        self._block_size = block_size
        self._queue: list[Probe] = []

    @property
    def has_work(self) -> bool:
        """Whether a probe is under way."""
        return bool(self._queue)

    def add(self, call: ProbeAdapter) -> None:
        """Queue a call."""
        self._queue.append(Probe(call))

    def advance(self) -> Reply | None:
        """Compute one prompt of the oldest probe whose adapter is here."""
        for probe in self._queue:
            digest = probe.call.digest
            if not probe.pinned:
                if not self._residency.is_resident(digest):
                    error = self._residency.load_error(digest)
                    if error is None:
                        continue
                    self._queue.remove(probe)
                    return Reply(call_id=probe.call.call_id, error=ErrorPayload.of(error))
                self._residency.acquire(digest)
                probe.pinned = True
            return self._advance_one(probe)
        return None

    def _advance_one(self, probe: Probe) -> Reply | None:
        prompt = probe.call.prompts[probe.num_prompts_done]
        num_blocks = -(-len(prompt) // self._block_size)
        error = None
        if self._pool.can_allocate(num_blocks):
            self._compare(probe, prompt, num_blocks)
        else:
            error = EngineOverloadedError("no memory for a probe now; try again", retry_after_s=1.0)
        if error is None and probe.num_prompts_done < len(probe.call.prompts):
            return None
        self._queue.remove(probe)
        self._residency.release(probe.call.digest)
        if error is not None:
            return Reply(call_id=probe.call.call_id, error=ErrorPayload.of(error))
        return Reply(call_id=probe.call.call_id, probe=_report(probe))

    def _compare(self, probe: Probe, prompt: tuple[int, ...], num_blocks: int) -> None:
        blocks = self._pool.allocate(num_blocks)
        try:
            base = self._runner.all_logits(prompt, blocks, None)
            adapted = self._runner.all_logits(prompt, blocks, probe.call.digest)
        finally:
            self._pool.release(blocks)
        probe.num_prompts_done += 1
        probe.num_positions += len(prompt)
        if not bool(torch.isfinite(adapted).all()):
            probe.is_finite = False
            return
        probe.max_delta = max(probe.max_delta, float((adapted - base).abs().max()))
        probe.num_changed += int((adapted.argmax(-1) != base.argmax(-1)).sum())


def _report(probe: Probe) -> ProbeReport:
    return ProbeReport(
        ref=AdapterRef(digest=probe.call.digest),
        finite=probe.is_finite,
        max_logit_delta=probe.max_delta,
        changed_token_share=probe.num_changed / max(1, probe.num_positions),
    )
