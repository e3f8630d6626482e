"""Sequences with one query each, padded to a common length and computed together.

Padding never changes a row: see README.md. So rows are grouped by cost alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

# below 16 columns the CPU product adds its terms in another order; softmax reads 16 lanes
PADDED_LEN_MULTIPLE = 16
# a further group costs as much as this many padded positions (eight small ops per layer)
GROUP_COST_POSITIONS = 512


class Row(NamedTuple):
    """One query: its token, its blocks, and the gathered positions it sees: first <= p < end."""

    token: int
    blocks: tuple[int, ...]
    first: int
    end: int


@dataclass(eq=False, slots=True)
class DecodeGroup:
    """Gather indices, mask and scratch of rows that are computed together."""

    tokens: Tensor  # [n] int64
    blocks: Tensor  # [n * blocks_per_row] int64, filled up with the row's own first block
    mask: Tensor  # [n, 1, padded_len] float32, -inf where a row does not see
    slots: Tensor  # [n, padded_len] int64, a row's first visible slot where it does not see
    stale_slots: Tensor  # gathered slots that hold no token of the row, from its last block
    padded_len: int
    _indices: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _bags: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)
    _masks: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)
    _scratch: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    def gather(self, cache: Tensor, name: str) -> Tensor:
        """Return the rows' keys or values: [Hkv * n, padded_len, D], in a buffer of the step.

        The buffer called `name` is overwritten by the next call with that name.
        """
        heads, num_blocks, block_size, head_dim = cache.shape
        flat = cache.view(heads * num_blocks, block_size * head_dim)
        index = self._indices.get((heads, num_blocks))
        if index is None:
            per_head = torch.arange(heads).unsqueeze(1) * num_blocks
            index = self._indices[heads, num_blocks] = (per_head + self.blocks).flatten()
        buffer = self._scratch.get(name)
        wanted = (index.shape[0], flat.shape[1])
        if buffer is None or buffer.shape != wanted or buffer.dtype != cache.dtype:
            buffer = self._scratch[name] = flat.new_empty(wanted)
        torch.index_select(flat, 0, index, out=buffer)
        gathered = buffer.view(heads, self.num_rows * self.padded_len, head_dim)
        if self.stale_slots.numel():
            gathered.index_fill_(1, self.stale_slots, 0)
        return gathered.view(heads * self.num_rows, self.padded_len, head_dim)

    def bags(self, cache: Tensor, group_size: int) -> Tensor:
        """Return the pool rows of every query head's positions: [Hkv * n * group, padded_len].

        They index the cache as [Hkv * num_slots, D]. Hidden positions name a visible slot, so
        that a weight of zero never meets memory of another sequence.
        """
        heads, num_slots = cache.shape[0], cache.shape[1] * cache.shape[2]
        bags = self._bags.get((heads, num_slots, group_size))
        if bags is None:
            per_head = torch.arange(heads).view(-1, 1, 1, 1) * num_slots
            rows = (per_head + self.slots.unsqueeze(1)).expand(-1, -1, group_size, -1)
            fits = heads * num_slots < 2**31
            bags = rows.reshape(-1, self.padded_len).to(torch.int32 if fits else torch.int64)
            self._bags[heads, num_slots, group_size] = bags
        return bags

    def head_mask(self, num_kv_heads: int, dtype: torch.dtype) -> Tensor:
        """Return the mask for every KV head: [Hkv * n, 1, padded_len]."""
        mask = self._masks.get((num_kv_heads, dtype))
        if mask is None:
            mask = self.mask.to(dtype).repeat(num_kv_heads, 1, 1)
            self._masks[num_kv_heads, dtype] = mask
        return mask


def group_rows(rows: Sequence[Row], block_size: int) -> tuple[DecodeGroup, ...]:
    """Return rows in groups of similar length, as few as the cost of padding allows."""
    by_length = sorted(rows, key=lambda row: (-len(row.blocks), row.token))
    return tuple(_build(part, block_size) for part in _split(by_length, block_size))


def _split(rows: list[Row], block_size: int) -> list[list[Row]]:
    """Cut where it saves the most padding, and the parts again, while that exceeds a group's cost.

    `rows` descend in length.
    """
    if not rows:
        return []
    saved = [
        (len(rows[0].blocks) - len(row.blocks)) * (len(rows) - index) * block_size
        for index, row in enumerate(rows)
    ]
    cut = max(range(len(rows)), key=saved.__getitem__)
    if saved[cut] <= GROUP_COST_POSITIONS:
        return [rows]
    return _split(rows[:cut], block_size) + _split(rows[cut:], block_size)


def _build(rows: list[Row], block_size: int) -> DecodeGroup:
    unit = math.lcm(block_size, PADDED_LEN_MULTIPLE) // block_size
    width = -(-max(len(row.blocks) for row in rows) // unit) * unit
    padded_len = width * block_size
    filled = [row.blocks + row.blocks[:1] * (width - len(row.blocks)) for row in rows]
    blocks = torch.tensor(filled)  # [n, width]
    position = torch.arange(padded_len)
    first = torch.tensor([row.first for row in rows]).unsqueeze(1)
    end = torch.tensor([row.end for row in rows]).unsqueeze(1)
    # padding repeats the first block; it has slots of no token only where it is the last too
    copied = [len(row.blocks) * block_size if len(row.blocks) > 1 else padded_len for row in rows]
    copied_end = torch.tensor(copied).unsqueeze(1)
    hidden = (position < first) | (position >= end)  # [n, padded_len]
    stale = (position >= end) & (position < copied_end)
    slots = (blocks.unsqueeze(2) * block_size + torch.arange(block_size)).flatten(1)
    mask = torch.zeros(len(rows), 1, padded_len).masked_fill_(hidden.unsqueeze(1), float("-inf"))
    return DecodeGroup(
        tokens=torch.tensor([row.token for row in rows]),
        blocks=blocks.flatten(),
        mask=mask,
        slots=torch.where(hidden, slots.gather(1, first), slots),
        stale_slots=stale.flatten().nonzero().squeeze(1),
        padded_len=padded_len,
    )
