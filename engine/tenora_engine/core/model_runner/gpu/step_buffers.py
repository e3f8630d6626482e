"""Where the inputs of a step lie: the same addresses in every step, so that a graph can read them.

One arena in pinned host memory is filled by the host and copied to its twin on the device in one
asynchronous copy. The host writes the next step only after it has read the tokens of this one,
so a copy under way is never overwritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from tenora_engine.core.model_runner.forward_batch import BatchRow

ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: sequences, tokens, and blocks of one sequence."""

    max_rows: int
    max_tokens: int
    max_blocks_per_row: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row's token is chosen: greedy at temperature 0, else by its own uniform number."""

    temperature: float = 0.0
    top_p: float = 1.0
    uniform: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Views of an arena; T tokens, N sequences, L rows with logits (L is at most T)."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64
    logit_rows: Tensor  # [L] int64
    uniform: Tensor  # [N] float64
    token_lora_index: Tensor  # [T] int32, -1 for none
    logit_lora_index: Tensor  # [L] int32, the same for the rows with logits
    temperature: Tensor  # [N] float32
    top_p: Tensor  # [N] float32
    seq_lens: Tensor  # [N] int32
    cu_query_lens: Tensor  # [N + 1] int32
    block_tables: Tensor  # [N, max_blocks_per_row] int32, the last, so that unused rows stay home


class StepBuffers:
    """The inputs of one step on the host and on the device."""

    def __init__(self, limits: StepLimits, device: torch.device) -> None:
        self.limits = limits
        layout = _layout(limits)
        self._bytes_without_tables = layout["block_tables"][0]
        self._row_bytes = limits.max_blocks_per_row * torch.int32.itemsize
        size = self._bytes_without_tables + limits.max_rows * self._row_bytes
        self._host_arena = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device_arena = torch.zeros(size, dtype=torch.uint8, device=device)
        self._host = _views(self._host_arena, layout)
        self.device = _views(self._device_arena, layout)
        # what each row's table held last: the list itself, and how much of it was written
        self._written: list[tuple[list[int], int]] = [([], 0)] * limits.max_rows

    def fill(self, rows: Sequence[BatchRow], draws: Sequence[Draw], *, num_padding: int) -> None:
        """Write a step's rows and `num_padding` tokens of no sequence, and start the copy.

        A padding token stores nothing, has no adapter, and what is computed for it means nothing.
        A row's block table may only grow while it is the same list. Mutates both arenas.
        """
        self._fill_tokens(rows, num_padding)
        self._fill_lengths(rows, num_padding)
        self._fill_draws(draws)
        for index, row in enumerate(rows):
            self._fill_table(index, row.block_table)
        end = self._bytes_without_tables + len(rows) * self._row_bytes
        self._device_arena[:end].copy_(self._host_arena[:end], non_blocking=True)

    def _fill_tokens(self, rows: Sequence[BatchRow], num_padding: int) -> None:
        size = self.limits.block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        for row in rows:
            end = row.start + len(row.token_ids)
            token_ids += row.token_ids
            positions += range(row.start, end)
            table = row.block_table
            slots += [table[p // size] * size + p % size for p in range(row.start, end)]
            logit_rows += range(len(token_ids) - row.num_logits, len(token_ids))
        padded = range(len(token_ids), len(token_ids) + num_padding)
        host = self._host
        _put(host.token_ids, [*token_ids, *[0] * num_padding])
        _put(host.positions, [*positions, *[0] * num_padding])
        _put(host.slot_mapping, [*slots, *[-1] * num_padding])
        _put(host.logit_rows, [*logit_rows, *padded])

    def _fill_lengths(self, rows: Sequence[BatchRow], num_padding: int) -> None:
        token_lora_index = [row.adapter_index for row in rows for _ in row.token_ids]
        logit_lora_index = [row.adapter_index for row in rows for _ in range(row.num_logits)]
        ends = list(accumulate((len(row.token_ids) for row in rows), initial=0))
        host = self._host
        _put(host.token_lora_index, token_lora_index + [-1] * num_padding)
        _put(host.logit_lora_index, logit_lora_index + [-1] * num_padding)
        _put(host.seq_lens, [r.start + len(r.token_ids) for r in rows] + [0] * num_padding)
        _put(host.cu_query_lens, ends + [ends[-1]] * num_padding)

    def _fill_draws(self, draws: Sequence[Draw]) -> None:
        _put(self._host.uniform, [draw.uniform for draw in draws])
        _put(self._host.temperature, [draw.temperature for draw in draws])
        _put(self._host.top_p, [draw.top_p for draw in draws])

    def _fill_table(self, index: int, table: list[int]) -> None:
        """Write what is new since this row's table was written last; mostly nothing."""
        known, length = self._written[index]
        start = length if known is table and length <= len(table) else 0
        if start < len(table):
            row = self._host.block_tables[index]
            row[start : len(table)] = torch.tensor(table[start:], dtype=torch.int32)
        self._written[index] = (table, len(table))


def _put(target: Tensor, values: Sequence[float]) -> None:
    if values:
        target[: len(values)] = torch.tensor(values, dtype=target.dtype)


def _layout(limits: StepLimits) -> dict[str, tuple[int, torch.dtype, tuple[int, ...]]]:
    """Offset in bytes, dtype and shape of each tensor, in the order of `StepTensors`."""
    tokens, rows = (limits.max_tokens,), (limits.max_rows,)
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "token_ids": (torch.int64, tokens),
        "positions": (torch.int64, tokens),
        "slot_mapping": (torch.int64, tokens),
        "logit_rows": (torch.int64, tokens),
        "uniform": (torch.float64, rows),
        "token_lora_index": (torch.int32, tokens),
        "logit_lora_index": (torch.int32, tokens),
        "temperature": (torch.float32, rows),
        "top_p": (torch.float32, rows),
        "seq_lens": (torch.int32, rows),
        "cu_query_lens": (torch.int32, (limits.max_rows + 1,)),
        "block_tables": (torch.int32, (limits.max_rows, limits.max_blocks_per_row)),
    }
    layout = {}
    offset = 0
    for name in (field.name for field in fields(StepTensors)):
        dtype, shape = shapes[name]
        layout[name] = (offset, dtype, shape)
        num_bytes = prod(shape) * dtype.itemsize
        offset += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return layout


def _views(
    arena: Tensor, layout: dict[str, tuple[int, torch.dtype, tuple[int, ...]]]
) -> StepTensors:
    return StepTensors(
        **{
            name: arena[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for name, (offset, dtype, shape) in layout.items()
        }
    )
