"""Runs the rows of one step on the device: fill the buffers, forward, choose, read the ids.

Nothing in a step waits for the device but the last read. That read also says that the buffers,
the adapter slots and the KV memory may be changed for the next step.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from tenora_engine.core.adapters.device_adapters import DeviceAdapters
from tenora_engine.core.model_runner.forward_batch import BatchRow, ForwardBatch
from tenora_engine.core.model_runner.gpu.choosing import NOT_FINITE, choose_tokens
from tenora_engine.core.model_runner.gpu.decode_graphs import DecodeGraphs
from tenora_engine.core.model_runner.gpu.step_buffers import Draw, StepBuffers, StepLimits
from tenora_engine.core.models.transformer import LayerKV, Transformer
from tenora_kernels.attention import AttentionBatch
from tenora_kernels.attention.device_batch import DeviceAttentionBatch


class StepExecutor:
    """One model on one device, its KV memory, its adapters and its recorded decode steps."""

    def __init__(
        self,
        model: Transformer,
        kv: Sequence[LayerKV],
        adapters: DeviceAdapters,
        limits: StepLimits,
        device: torch.device,
        *,
        masked_ids: Sequence[int] = (),
        uses_graphs: bool = True,
    ) -> None:
        """`masked_ids` are never sampled; `uses_graphs` is False to compare with eager steps."""
        self.limits = limits
        self.uses_graphs = uses_graphs
        self._model = model
        self._kv = kv
        self._adapters = adapters
        self._device = device
        self._buffers = StepBuffers(limits, device)
        self.graphs = DecodeGraphs(self._decode, device, max_rows=limits.max_rows)
        ids = torch.tensor(list(masked_ids), dtype=torch.int64, device=device)
        self._masked_ids = ids if len(ids) else None
        self._is_cuda = device.type == "cuda"
        self._chosen = torch.zeros(
            limits.max_rows, dtype=torch.int64, pin_memory=self._is_cuda
        )  # where the host reads

    @torch.inference_mode()
    def run(self, rows: Sequence[BatchRow], draws: Sequence[Draw]) -> list[int | None]:
        """Compute a step; one id per row that wants logits, None where they are not finite.

        `rows[i].adapter_index` is an adapter slot or -1; `draws` has one entry per id wanted.
        """
        logits = self._replay(rows, draws) if self._is_decode(rows) else self._eager(rows, draws)
        return self._read(logits[: len(draws)], any(draw.temperature > 0.0 for draw in draws))

    @torch.inference_mode()
    def all_logits(
        self, token_ids: Sequence[int], block_table: list[int], lora_index: int
    ) -> Tensor:
        """Logits `[len(token_ids), vocab_size]` on the host, computed in the given blocks."""
        parts = []
        for start in range(0, len(token_ids), self.limits.max_tokens):
            chunk = token_ids[start : start + self.limits.max_tokens]
            row = BatchRow(chunk, start, block_table, lora_index, len(chunk))
            parts.append(self._eager([row], []).cpu())
        return torch.cat(parts)

    @torch.inference_mode()
    def record(self, sizes: Sequence[int] | None = None) -> None:
        """Record the decode steps of `sizes` (None for all), so that none is recorded later.

        The largest comes first: the smaller ones then fit into the memory it left.
        """
        for size in sorted(sizes or self.graphs.sizes, reverse=True):
            for has_lora in (True, False):
                self._buffers.fill([], [], num_padding=size)
                self.graphs.replay(size, has_lora=has_lora)
        self._wait()

    def _is_decode(self, rows: Sequence[BatchRow]) -> bool:
        return self.uses_graphs and all(
            len(row.token_ids) == 1 and row.num_logits == 1 for row in rows
        )

    def _replay(self, rows: Sequence[BatchRow], draws: Sequence[Draw]) -> Tensor:
        size = self.graphs.size_for(len(rows))
        self._buffers.fill(rows, draws, num_padding=size - len(rows))
        return self.graphs.replay(size, has_lora=_has_lora(rows))

    def _decode(self, size: int, has_lora: bool) -> Tensor:
        longest = self.limits.max_blocks_per_row * self.limits.block_size
        attention = self._attention(size, longest, 1, has_decodes=True)
        return self._forward(attention, size, size, has_lora=has_lora, is_decode=True)

    def _eager(self, rows: Sequence[BatchRow], draws: Sequence[Draw]) -> Tensor:
        self._buffers.fill(rows, draws, num_padding=0)
        query_lens = [len(row.token_ids) for row in rows]
        longest = max(row.start + len(row.token_ids) for row in rows)
        attention = self._attention(
            len(rows), longest, max(query_lens), has_decodes=1 in query_lens
        )
        num_logits = sum(row.num_logits for row in rows)
        return self._forward(attention, sum(query_lens), num_logits, has_lora=_has_lora(rows))

    def _attention(
        self, num_sequences: int, max_seq_len: int, max_query_len: int, *, has_decodes: bool
    ) -> DeviceAttentionBatch:
        inputs = self._buffers.device
        return DeviceAttentionBatch(
            block_tables=inputs.block_tables[:num_sequences],
            seq_lens=inputs.seq_lens[:num_sequences],
            cu_query_lens=inputs.cu_query_lens[: num_sequences + 1],
            max_seq_len=max_seq_len,
            max_query_len=max_query_len,
            has_decodes=has_decodes,
        )

    def _forward(
        self,
        attention: DeviceAttentionBatch,
        num_tokens: int,
        num_logits: int,
        *,
        has_lora: bool,
        is_decode: bool = False,
    ) -> Tensor:
        inputs = self._buffers.device
        plan = logit_plan = None
        if has_lora:
            plan = logit_plan = self._adapters.plan(inputs.token_lora_index[:num_tokens])
            if not is_decode:
                logit_plan = self._adapters.logit_plan(inputs.logit_lora_index[:num_logits])
        batch = ForwardBatch(
            token_ids=inputs.token_ids[:num_tokens],
            positions=inputs.positions[:num_tokens],
            slot_mapping=inputs.slot_mapping[:num_tokens],
            logit_rows=inputs.logit_rows[:num_logits],
            # the op of the bound backend takes this where the CPU's takes a host batch
            attention=cast("AttentionBatch", attention),
            lora_plan=plan,
            logit_lora_plan=logit_plan,
        )
        lora = self._adapters.layers if has_lora else None
        return self._model.head.logits(self._model.hidden_states(batch, self._kv, lora))

    def _read(self, logits: Tensor, has_draws: bool) -> list[int | None]:
        count = len(logits)
        if count:
            inputs = self._buffers.device
            chosen = choose_tokens(
                logits,
                inputs.temperature[:count],
                inputs.top_p[:count],
                inputs.uniform[:count],
                masked_ids=self._masked_ids,
                has_draws=has_draws,
            )
            self._chosen[:count].copy_(chosen, non_blocking=True)
        self._wait()
        return [None if token == NOT_FINITE else token for token in self._chosen[:count].tolist()]

    def _wait(self) -> None:
        if self._is_cuda:
            torch.cuda.current_stream().synchronize()


def _has_lora(rows: Sequence[BatchRow]) -> bool:
    return any(row.adapter_index >= 0 for row in rows)
