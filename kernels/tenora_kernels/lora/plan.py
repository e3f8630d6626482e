"""What one step's rows need of their adapters, computed once and used by every layer."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from tenora_kernels.errors import KernelInputError
from tenora_kernels.lora.layout import LoraLayout
from tenora_kernels.lora.stack import LoraStack

# products treat the last rows apart unless their number is a multiple of this
ROW_MULTIPLE = 4
# a run of rows computed alone costs about as much as this many multiply-adds (2 AVX2 cores)
RUN_COST_MACS = 1_000_000


class Run(NamedTuple):
    """Neighbouring rows start <= t < end of one adapter."""

    adapter: int
    start: int
    end: int


class DensePart(NamedTuple):
    """Rows that meet all columns at once; `hidden` marks the columns that are not a row's own."""

    rows: slice | Tensor
    hidden: Tensor  # bool [rows, filled up to a multiple of ROW_MULTIPLE; num_columns]


@dataclass(frozen=True, eq=False, slots=True)
class LayoutPlan:
    """How a step's rows meet the columns of one layout: together, or run by run."""

    dense: DensePart | None
    runs: tuple[Run, ...]


class LoraPlan:
    """The adapters of one step's rows: which row runs which active index.

    Made once per step and passed to every `lora_add_` of that step.
    """

    def __init__(self, token_adapter: Tensor, num_adapters: int) -> None:
        """Take `token_adapter` [T] int64, the active index of each row or -1 for none.

        Raises:
            KernelInputError: an index that names no active adapter.
        """
        self.token_adapter = token_adapter
        self.num_adapters = num_adapters
        self.runs = _runs(token_adapter)
        self._by_layout: dict[tuple[LoraLayout, int], LayoutPlan] = {}
        for run in self.runs:
            if run.adapter >= num_adapters:
                raise KernelInputError(
                    f"row {run.start} runs adapter {run.adapter}, active adapters are 0 to "
                    f"{num_adapters - 1} and -1 means none"
                )

    @property
    def is_base_only(self) -> bool:
        """Whether no row has an adapter, so that no LoRA work is due."""
        return not self.runs

    @property
    def num_rows(self) -> int:
        return self.token_adapter.shape[0]

    @cached_property
    def segments(self) -> tuple[Tensor, Tensor]:
        """Rows gathered by adapter: `(segments, rows)`.

        rows: int32, rows of one adapter after those of another; segments: int64 [S, 3], adapter,
        first and count of its entries in `rows`. Rows without an adapter are in neither.
        """
        by_adapter: dict[int, list[int]] = {}
        for run in self.runs:
            by_adapter.setdefault(run.adapter, []).extend(range(run.start, run.end))
        segments: list[tuple[int, int, int]] = []
        rows: list[int] = []
        for adapter, own in sorted(by_adapter.items()):
            segments.append((adapter, len(rows), len(own)))
            rows += own
        return torch.tensor(segments, dtype=torch.int64), torch.tensor(rows, dtype=torch.int32)

    def check_adapters(self, num_adapters: int) -> None:
        """Raise KernelInputError unless the plan was made for that many active adapters."""
        if num_adapters != self.num_adapters:
            raise KernelInputError(
                f"the plan is for {self.num_adapters} adapters, the stack holds "
                f"{num_adapters}; stack again when the active adapters change"
            )

    def for_stack(self, stack: LoraStack) -> LayoutPlan:
        """Return the plan of a stack's layout, the same object for every stack that shares it.

        Raises:
            KernelInputError: the stack holds another number of adapters.
        """
        self.check_adapters(stack.num_adapters)
        macs_per_column = stack.in_features + sum(stack.slice_sizes) // len(stack.slice_sizes)
        key = (stack.columns.layout, macs_per_column)
        plan = self._by_layout.get(key)
        if plan is None:
            plan = self._by_layout[key] = self._plan(stack, macs_per_column)
        return plan

    def _plan(self, stack: LoraStack, macs_per_column: int) -> LayoutPlan:
        """Compute a run alone when that saves more than it costs."""
        layout = stack.columns.layout
        alone: list[Run] = []
        dense: list[Run] = []
        for run in self.runs:
            foreign_columns = layout.num_columns - layout.adapter_columns[run.adapter]
            saved_macs = (run.end - run.start) * foreign_columns * macs_per_column
            (alone if saved_macs > RUN_COST_MACS else dense).append(run)
        if not dense:
            return LayoutPlan(None, tuple(alone))
        rows, count = _dense_rows(dense, alone)
        adapters = self.token_adapter[rows]
        hidden = torch.ones(count + -count % ROW_MULTIPLE, layout.num_columns, dtype=torch.bool)
        hidden[:count] = adapters.unsqueeze(1) != layout.column_adapter
        return LayoutPlan(DensePart(rows, hidden), tuple(alone))


def _runs(token_adapter: Tensor) -> tuple[Run, ...]:
    """Neighbouring rows of one adapter, without the rows that have none."""
    if token_adapter.numel() == 0:
        return ()
    adapters, lengths = torch.unique_consecutive(token_adapter, return_counts=True)
    runs: list[Run] = []
    start = 0
    for adapter, length in zip(adapters.tolist(), lengths.tolist(), strict=True):
        if adapter >= 0:
            runs.append(Run(adapter, start, start + length))
        start += length
    return tuple(runs)


def _dense_rows(dense: list[Run], alone: list[Run]) -> tuple[slice | Tensor, int]:
    """The rows of `dense`: as a slice when few others lie between, otherwise by index."""
    start, end = dense[0].start, dense[-1].end
    wanted = sum(run.end - run.start for run in dense)
    if end - start <= 2 * wanted and not any(start <= run.start < end for run in alone):
        return slice(start, end), end - start
    index = torch.cat([torch.arange(run.start, run.end) for run in dense])
    return index, wanted
