"""Adapter factors as the engine holds them, and side by side as torch's products read them.

Built once per change of the set of active adapters; see README.md for the layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tenora_kernels.errors import ShapeError
from tenora_kernels.lora.layout import LoraLayout, layout_of

# a shrink product of fewer columns adds its terms in another order on some CPUs
MIN_SHRINK_COLUMNS = 16


@dataclass(frozen=True, eq=False, slots=True)
class LoraSlice:
    """One adapter's factors for one projection: delta(x) = scaling * (x A^T) B^T.

    lora_a [rank, in_features]; lora_b [out_slice, rank]; rank 0 is allowed and adds nothing.
    """

    lora_a: Tensor
    lora_b: Tensor
    scaling: float

    @property
    def rank(self) -> int:
        return self.lora_a.shape[0]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class LoraModule:
    """One adapter's factors for one fused module; None where a projection is not adapted."""

    slices: tuple[LoraSlice | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class SideBySide:
    """The factors of all adapters as the products of torch read them.

    Held in at least float32: the CPU has no product of bfloat16 into float32.
    """

    layout: LoraLayout
    lora_a: Tensor  # [num_columns and up to 16 zero rows, in_features]
    lora_b: tuple[Tensor, ...]  # per slice [its columns, slice_size]
    scaling: Tensor  # [num_columns] float32


@dataclass(frozen=True, eq=False)
class LoraStack:
    """All active adapters of one fused module. Position in `modules` is the active index.

    What a backend makes of them is built when it is first asked for.
    """

    modules: tuple[LoraModule | None, ...]
    slice_sizes: tuple[int, ...]
    in_features: int
    dtype: torch.dtype

    @property
    def num_adapters(self) -> int:
        return len(self.modules)

    @cached_property
    def columns(self) -> SideBySide:
        """The factors side by side, for the backends that are torch alone."""
        return _side_by_side(self)


def stack_modules(
    modules: Sequence[LoraModule | None],
    slice_sizes: tuple[int, ...],
    in_features: int,
    dtype: torch.dtype,
) -> LoraStack:
    """Return the active adapters of one module side by side.

    Args: modules, one entry per active index, None for an adapter without this module;
    slice_sizes, the output rows of each projection; dtype, that of the activations.
    Raises:
        ShapeError: factors that do not fit the module or each other.
    """
    for index, module in enumerate(modules):
        if module is not None:
            _check(index, module, slice_sizes, in_features)
    return LoraStack(tuple(modules), slice_sizes, in_features, dtype)


def _side_by_side(stack: LoraStack) -> SideBySide:
    num_slices = len(stack.slice_sizes)
    ranks = tuple(
        tuple(part.rank if part else 0 for part in _slices_of(module, num_slices))
        for module in stack.modules
    )
    layout = layout_of(ranks, num_slices)
    wide = torch.promote_types(stack.dtype, torch.float32)
    columns = SideBySide(
        layout,
        torch.zeros(layout.num_columns + MIN_SHRINK_COLUMNS, stack.in_features, dtype=wide),
        tuple(
            torch.empty(span.width, size, dtype=wide)
            for span, size in zip(layout.slices, stack.slice_sizes, strict=True)
        ),
        torch.empty(layout.num_columns, dtype=wide),
    )
    for adapter, position, part in _parts(stack.modules):
        _place(columns, stack.dtype, adapter, position, part)
    _keep_non_finite_apart(columns, stack.modules)
    return columns


def _slices_of(module: LoraModule | None, num_slices: int) -> tuple[LoraSlice | None, ...]:
    return module.slices if module is not None else (None,) * num_slices


def _parts(modules: Sequence[LoraModule | None]) -> Iterator[tuple[int, int, LoraSlice]]:
    """Every present slice with its active index and its position."""
    for adapter, module in enumerate(modules):
        for position, part in enumerate(module.slices if module is not None else ()):
            if part is not None and part.rank:
                yield adapter, position, part


def _place(
    to: SideBySide, dtype: torch.dtype, adapter: int, position: int, part: LoraSlice
) -> None:
    """Copy one slice's factors to its columns, rounded to the activations' dtype first."""
    columns = to.layout.by_adapter[adapter][position]
    offset = to.layout.slices[position].start
    to.lora_a[columns.start : columns.end] = part.lora_a.to(dtype)
    to.lora_b[position][columns.start - offset : columns.end - offset] = part.lora_b.to(dtype).T
    to.scaling[columns.start : columns.end] = part.scaling


def _keep_non_finite_apart(stacked: SideBySide, modules: Sequence[LoraModule | None]) -> None:
    """Move NaN and infinity from B to A, where the mask keeps them from other adapters' rows.

    A masked column still meets B as 0 * B, which is NaN for a B that is not finite. So such a B
    becomes zero and its A becomes NaN: rows of that adapter are NaN in the whole slice.
    """
    if all(bool(torch.isfinite(factor.sum())) for factor in stacked.lora_b):
        return
    for adapter, position, _ in _parts(modules):
        columns = stacked.layout.by_adapter[adapter][position]
        offset = stacked.layout.slices[position].start
        lora_b = stacked.lora_b[position][columns.start - offset : columns.end - offset]
        if not torch.isfinite(lora_b).all():
            lora_b.zero_()
            stacked.lora_a[columns.start : columns.end] = float("nan")


def _check(index: int, module: LoraModule, slice_sizes: tuple[int, ...], in_features: int) -> None:
    if len(module.slices) != len(slice_sizes):
        raise ShapeError(
            f"adapter {index} has {len(module.slices)} slices, the module has {len(slice_sizes)}"
        )
    for position, (part, out_size) in enumerate(zip(module.slices, slice_sizes, strict=True)):
        if part is None:
            continue
        expected_a, expected_b = (part.rank, in_features), (out_size, part.rank)
        if part.lora_a.shape != expected_a or part.lora_b.shape != expected_b:
            raise ShapeError(
                f"adapter {index} slice {position}: lora_a is {tuple(part.lora_a.shape)} and "
                f"lora_b {tuple(part.lora_b.shape)}, expected {expected_a} and {expected_b}"
            )
