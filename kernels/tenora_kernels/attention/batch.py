"""The shape of one step's attention, computed once and used by every layer.

Layers that see the same window share a `StepPlan`; the plan of a window is made when the first
of them asks for it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from tenora_kernels.attention.decode_group import DecodeGroup, Row, group_rows
from tenora_kernels.attention.prefill_chunk import PrefillChunk
from tenora_kernels.errors import KernelInputError


@dataclass(frozen=True, eq=False, slots=True)
class StepPlan:
    """Where a step's rows read: one-query sequences in groups, longer chunks one by one."""

    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]


class FlatBatch(NamedTuple):
    """A batch as int32 tensors: what code without Python's tuples reads."""

    query_starts: Tensor  # [S + 1]
    seq_lens: Tensor  # [S]
    blocks: Tensor  # the block tables one after the other
    table_starts: Tensor  # [S], where each begins in `blocks`


@dataclass(frozen=True, eq=False)
class AttentionBatch:
    """Lengths and block tables of the sequences of one step.

    Tokens are laid out sequence after sequence; a sequence's queries are its last positions.
    """

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    block_size: int
    num_tokens: int
    _plans: dict[int | None, StepPlan] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
    ) -> "AttentionBatch":
        """Return the batch of one step.

        Args: per sequence: new tokens, tokens including them, and blocks in order of position.
        A table may be longer than its sequence needs.
        Raises:
            KernelInputError: lengths that do not agree, or a table that is too short.
        """
        if not len(query_lens) == len(seq_lens) == len(block_tables):
            raise KernelInputError(
                f"{len(query_lens)} query_lens, {len(seq_lens)} seq_lens and "
                f"{len(block_tables)} block_tables: give one of each per sequence"
            )
        for index, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
            if not 0 < query_len <= seq_len:
                raise KernelInputError(
                    f"sequence {index} has {query_len} queries at length {seq_len}; "
                    "it needs at least one query and no more queries than tokens"
                )
            if len(block_tables[index]) * block_size < seq_len:
                raise KernelInputError(
                    f"sequence {index} has {len(block_tables[index])} blocks of {block_size} "
                    f"for {seq_len} tokens; allocate its blocks before the step"
                )
        tables = tuple(
            tuple(table[: -(-seq_len // block_size)])
            for table, seq_len in zip(block_tables, seq_lens, strict=True)
        )
        return cls(tuple(query_lens), tuple(seq_lens), tables, block_size, sum(query_lens))

    @cached_property
    def flat(self) -> FlatBatch:
        """The batch as tensors, made on first use."""
        table_lens = [len(table) for table in self.block_tables]
        return FlatBatch(
            _int32([0, *accumulate(self.query_lens)]),
            _int32(self.seq_lens),
            _int32(array("i", chain.from_iterable(self.block_tables))),
            _int32([0, *accumulate(table_lens)][:-1]),
        )

    def plan(self, sliding_window: int | None) -> StepPlan:
        """Return where rows read under this window (None for the whole sequence)."""
        plan = self._plans.get(sliding_window)
        if plan is None:
            plan = self._plans[sliding_window] = self._make_plan(sliding_window)
        return plan

    def _make_plan(self, sliding_window: int | None) -> StepPlan:
        rows: list[Row] = []
        chunks: list[PrefillChunk] = []
        start = 0
        for query_len, seq_len, table in zip(
            self.query_lens, self.seq_lens, self.block_tables, strict=True
        ):
            first_query = seq_len - query_len
            oldest = 0 if sliding_window is None else max(0, first_query + 1 - sliding_window)
            dropped = oldest // self.block_size
            visible_table = table[dropped:]
            offset = dropped * self.block_size  # position of the first gathered slot
            if query_len == 1:
                rows.append(Row(start, visible_table, oldest - offset, seq_len - offset))
            else:
                chunks.append(
                    PrefillChunk(
                        slice(start, start + query_len),
                        visible_table,
                        seq_len - offset,
                        sliding_window,
                    )
                )
            start += query_len
        groups = group_rows(rows, self.block_size)
        return StepPlan(groups, tuple(chunks))


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
