"""Which columns of a stack belong to which adapter; layers of equal ranks share one layout.

Columns stand slice after slice, and inside a slice adapter after adapter. Column c is row c of
the stacked A and, within its slice, a row of the stacked B.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# an expand product of at most this many columns adds its terms in plain order on every CPU tried
GROUP_COLUMNS = 128


class Columns(NamedTuple):
    """Columns start <= c < end of a stack."""

    start: int
    end: int

    @property
    def width(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, eq=False, slots=True)
class LoraLayout:
    """Column ranges of one stack. Equal ranks give the identical object: see `layout_of`."""

    num_columns: int
    slices: tuple[Columns, ...]
    by_adapter: tuple[tuple[Columns, ...], ...]  # [adapter][slice]
    groups: tuple[tuple[Columns, ...], ...]  # [slice]: what one expand product covers
    column_adapter: Tensor  # [num_columns] int64
    adapter_columns: tuple[int, ...]  # live columns of each adapter


@lru_cache(maxsize=1024)
def layout_of(ranks: tuple[tuple[int, ...], ...], num_slices: int) -> LoraLayout:
    """Return the layout of adapters with these ranks, [adapter][slice]; 0 where not adapted."""
    slices: list[Columns] = []
    groups: list[tuple[Columns, ...]] = []
    by_adapter: list[list[Columns]] = [[] for _ in ranks]
    owners: list[int] = []
    for position in range(num_slices):
        start = len(owners)
        for adapter, adapter_ranks in enumerate(ranks):
            rank = adapter_ranks[position]
            by_adapter[adapter].append(Columns(len(owners), len(owners) + rank))
            owners.extend([adapter] * rank)
        slices.append(Columns(start, len(owners)))
        groups.append(_group([columns[position] for columns in by_adapter]))
    return LoraLayout(
        num_columns=len(owners),
        slices=tuple(slices),
        by_adapter=tuple(tuple(columns) for columns in by_adapter),
        groups=tuple(groups),
        column_adapter=torch.tensor(owners, dtype=torch.int64),
        adapter_columns=tuple(sum(adapter_ranks) for adapter_ranks in ranks),
    )


def _group(adapters: list[Columns]) -> tuple[Columns, ...]:
    """Join neighbours while they fit GROUP_COLUMNS; an adapter is never cut."""
    joined: list[Columns] = []
    for columns in adapters:
        if columns.width == 0:
            continue
        if joined and columns.end - joined[-1].start <= GROUP_COLUMNS:
            joined[-1] = Columns(joined[-1].start, columns.end)
        else:
            joined.append(columns)
    return tuple(joined)
