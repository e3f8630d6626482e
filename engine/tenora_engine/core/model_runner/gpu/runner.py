"""The `ModelRunner` of a GPU: sequences and digests in, rows and adapter slots to the executor."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch

from tenora_engine.core.model_runner.base import ModelRunner
from tenora_engine.core.model_runner.gpu.executor import StepExecutor
from tenora_engine.core.model_runner.gpu.step_buffers import Draw
from tenora_engine.core.model_runner.kv_memory import zero_kv_blocks
from tenora_engine.core.model_runner.step_rows import rows_of_step
from tenora_engine.core.models.transformer import LayerKV
from tenora_engine.core.scheduler.scheduler import ScheduledSequence
from tenora_engine.core.sequence import Sequence
from tenora_kernels.sampling import uniform


class GpuModelRunner(ModelRunner):
    """Runs steps whose adapters are all in slots, which the scheduler made sure of."""

    def __init__(
        self, executor: StepExecutor, kv: SequenceOf[LayerKV], lora_index_of: Callable[[str], int]
    ) -> None:
        """`kv` is the executor's; `lora_index_of` gives the device slot of a pinned adapter."""
        self._executor = executor
        self._kv = kv
        self._lora_index_of = lora_index_of

    def run(self, scheduled: SequenceOf[ScheduledSequence]) -> list[int | None]:
        """Compute the step; one sampled token per sequence that samples, in order."""
        digests = {item.sequence.request.adapter_digest for item in scheduled}
        slots = {digest: self._lora_index_of(digest) for digest in digests if digest is not None}
        draws = [_draw(item.sequence) for item in scheduled if item.samples]
        return self._executor.run(rows_of_step(scheduled, slots), draws)

    def all_logits(
        self, token_ids: SequenceOf[int], block_table: list[int], digest: str | None
    ) -> torch.Tensor:
        """Logits `[len(token_ids), vocab_size]` of one prompt, computed in the given blocks."""
        slot = -1 if digest is None else self._lora_index_of(digest)
        return self._executor.all_logits(token_ids, block_table, slot)

    @torch.inference_mode()
    def zero_blocks(self, blocks: SequenceOf[int]) -> None:
        """Overwrite the keys and values of `blocks` with zeros, before the next step's writes."""
        zero_kv_blocks(self._kv, blocks)


def _draw(sequence: Sequence) -> Draw:
    request = sequence.request
    if request.temperature <= 0.0:
        return Draw()
    return Draw(request.temperature, request.top_p, uniform(request.seed, len(sequence.token_ids)))
