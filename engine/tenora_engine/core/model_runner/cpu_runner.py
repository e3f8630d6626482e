"""Runs the model on a step's sequences on the CPU: owns the KV memory and builds every tensor."""

from collections.abc import Sequence as SequenceOf

import torch

from tenora_engine.core.adapters.active_set import ActiveSet, StackedAdapters
from tenora_engine.core.model_runner.base import ModelRunner
from tenora_engine.core.model_runner.forward_batch import (
    BatchRow,
    ForwardBatch,
    build_forward_batch,
)
from tenora_engine.core.model_runner.kv_memory import allocate_kv, zero_kv_blocks
from tenora_engine.core.model_runner.sampler import Sampler
from tenora_engine.core.model_runner.step_rows import rows_of_step
from tenora_engine.core.models.native_layers import create_native_layers
from tenora_engine.core.models.transformer import Transformer
from tenora_engine.core.scheduler.scheduler import ScheduledSequence


class CpuModelRunner(ModelRunner):
    """The forward pass of a step. Holds the KV pool `[num_kv_heads, blocks, size, head_dim]`."""

    def __init__(
        self,
        model: Transformer,
        sampler: Sampler,
        active_set: ActiveSet,
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: torch.dtype,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._active_set = active_set
        self._block_size = block_size
        self._kv = allocate_kv(model.config, num_blocks, block_size, kv_dtype)
        self._layers = create_native_layers(model, self._kv)

    @torch.inference_mode()
    def run(self, scheduled: SequenceOf[ScheduledSequence]) -> list[int | None]:
        """Compute the step; one sampled token per sequence that samples, in order.

        None stands for a sequence whose logits are not finite. Mutates the KV pool.
        """
        sampling = [item.sequence for item in scheduled if item.samples]
        digests = {
            item.sequence.request.adapter_digest
            for item in scheduled
            if item.sequence.request.adapter_digest is not None
        }
        stacked = self._active_set.covering(digests)
        rows = rows_of_step(scheduled, stacked.index if stacked else {})
        batch = build_forward_batch(
            rows,
            block_size=self._block_size,
            num_adapters=len(stacked.index) if stacked else 0,
        )
        hidden = self._hidden_states(batch, stacked)
        return self._sampler.choose(hidden, sampling) if sampling else []

    @torch.inference_mode()
    def all_logits(
        self, token_ids: SequenceOf[int], block_table: list[int], digest: str | None
    ) -> torch.Tensor:
        """Logits `[len(token_ids), vocab_size]` of one prompt, computed in the given blocks."""
        stacked = self._active_set.covering([digest] if digest else [])
        row = BatchRow(
            token_ids=token_ids,
            start=0,
            block_table=block_table,
            adapter_index=stacked.index[digest] if stacked and digest else -1,
            num_logits=len(token_ids),
        )
        batch = build_forward_batch(
            [row],
            block_size=self._block_size,
            num_adapters=len(stacked.index) if stacked else 0,
        )
        return self._model.head.logits(self._hidden_states(batch, stacked))

    def _hidden_states(self, batch: ForwardBatch, stacked: StackedAdapters | None) -> torch.Tensor:
        lora = stacked.layers if stacked else None
        return self._model.hidden_states(batch, self._kv, lora, self._layers)

    @torch.inference_mode()
    def zero_blocks(self, blocks: SequenceOf[int]) -> None:
        """Overwrite the keys and values of `blocks` with zeros."""
        zero_kv_blocks(self._kv, blocks)
