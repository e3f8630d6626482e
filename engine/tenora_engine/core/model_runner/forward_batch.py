"""All tensors of one step, built once and read by every layer."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from tenora_kernels.attention import AttentionBatch
from tenora_kernels.lora import LoraPlan


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The flat tokens of one step; `T` tokens, `N` rows whose logits are wanted.

    token_ids, positions, slot_mapping: `[T]` int64; logit_rows: `[N]` int64. The plans map
    tokens (all, and the logit rows alone) to active adapters; None when the batch has none.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    logit_rows: torch.Tensor
    attention: AttentionBatch
    lora_plan: LoraPlan | None
    logit_lora_plan: LoraPlan | None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence's part of a step.

    `token_ids` are computed from position `start` on; `adapter_index` is the place among the
    active adapters, or -1; logits are wanted for the last `num_logits` tokens.
    """

    token_ids: SequenceOf[int]
    start: int
    block_table: list[int]
    adapter_index: int
    num_logits: int


def build_forward_batch(
    rows: SequenceOf[BatchRow], *, block_size: int, num_adapters: int
) -> ForwardBatch:
    """Lay the rows' tokens one after the other and make every tensor that the layers share."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    token_adapter: list[int] = []
    logit_adapter: list[int] = []
    for row in rows:
        count = len(row.token_ids)
        token_ids += row.token_ids
        logit_rows += range(len(token_ids) - row.num_logits, len(token_ids))
        logit_adapter += [row.adapter_index] * row.num_logits
        positions += range(row.start, row.start + count)
        slots += [
            row.block_table[position // block_size] * block_size + position % block_size
            for position in range(row.start, row.start + count)
        ]
        token_adapter += [row.adapter_index] * count
    lora_plan = logit_lora_plan = _plan(token_adapter, num_adapters) if num_adapters else None
    if num_adapters and logit_adapter != token_adapter:
        logit_lora_plan = _plan(logit_adapter, num_adapters)
    return ForwardBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        attention=AttentionBatch.build(
            query_lens=[len(row.token_ids) for row in rows],
            seq_lens=[row.start + len(row.token_ids) for row in rows],
            block_tables=[row.block_table for row in rows],
            block_size=block_size,
        ),
        lora_plan=lora_plan,
        logit_lora_plan=logit_lora_plan,
    )


def _plan(adapter_of_row: list[int], num_adapters: int) -> LoraPlan:
    return LoraPlan(torch.tensor(adapter_of_row, dtype=torch.int64), num_adapters)
