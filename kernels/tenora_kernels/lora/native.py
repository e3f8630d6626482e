"""Batched LoRA in C++: each adapter's rows meet that adapter's factors, read once at their rank."""

import ctypes
import weakref

import torch
from torch import Tensor

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.lora import cpu
from tenora_kernels.lora.plan import LoraPlan
from tenora_kernels.lora.stack import LoraModule, LoraStack
from tenora_kernels.native import library
from tenora_kernels.native.library import PackedMemory, PackedWeight


class NativeModule:
    """One adapter's factors of one fused module, packed. Kept for as long as the module lives."""

    def __init__(
        self, module: LoraModule, slice_sizes: tuple[int, ...], memory: PackedMemory | None
    ) -> None:
        starts = [sum(slice_sizes[:position]) for position in range(len(slice_sizes))]
        parts = [
            (start, part)
            for start, part in zip(starts, module.slices, strict=True)
            if part is not None and part.rank
        ]
        dtype = _common_dtype([part.lora_a for _, part in parts])
        self._a = PackedWeight(torch.cat([part.lora_a.to(dtype) for _, part in parts]), memory)
        self._b = [
            PackedWeight(part.lora_b.to(_own_dtype(part.lora_b)), memory) for _, part in parts
        ]
        slices, a_column = [], 0
        for (start, part), b in zip(parts, self._b, strict=True):
            slices.append(library.LoraSlice(b.descriptor, a_column, start, part.scaling))
            a_column += part.rank
        self._slices = (library.LoraSlice * len(slices))(*slices)
        self._descriptor = library.LoraModule(self._a.descriptor, len(slices), self._slices)
        self.address = ctypes.addressof(self._descriptor)


_packed: "weakref.WeakKeyDictionary[LoraModule, NativeModule]" = weakref.WeakKeyDictionary()


def packed_module(
    module: LoraModule, slice_sizes: tuple[int, ...], memory: PackedMemory | None = None
) -> NativeModule:
    """Return the packed factors of `module`, packing them on first use, into `memory` if given."""
    found = _packed.get(module)
    if found is None:
        found = _packed[module] = NativeModule(module, slice_sizes, memory)
    return found


def pack_module(module: LoraModule, slice_sizes: tuple[int, ...], memory: PackedMemory) -> None:
    """Pack `module` now rather than in its first step. Any thread may."""
    if any(part and part.rank for part in module.slices):
        packed_module(module, slice_sizes, memory)


class NativeStack:
    """The active adapters of one fused module: a table of pointers, nothing is copied."""

    def __init__(self, stack: LoraStack) -> None:
        self._modules = [
            packed_module(module, stack.slice_sizes)
            if module is not None and any(part and part.rank for part in module.slices)
            else None
            for module in stack.modules
        ]
        addresses = [0 if module is None else module.address for module in self._modules]
        self.table = torch.tensor(addresses, dtype=torch.int64)
        self.is_empty = not any(addresses)


_stacks: "weakref.WeakKeyDictionary[LoraStack, NativeStack]" = weakref.WeakKeyDictionary()


def packed_stack(stack: LoraStack) -> NativeStack:
    """Return the table of `stack`, made on first use and kept for as long as the stack lives."""
    found = _stacks.get(stack)
    if found is None:
        found = _stacks[stack] = NativeStack(stack)
    return found


def lora_add_(y: Tensor, x: Tensor, stack: LoraStack, token_adapter: Tensor | LoraPlan) -> None:
    """Add each row's adapter to y; see `reference.lora_add_`.

    Sums are float32 in the order of in_features and rank. A row's bits depend on its own x, y and
    adapter only. Factors are read in their own dtype. A stack of another dtype runs the torch twin.
    Args: y [T, sum(slice_sizes)] and x [T, in] float32, rows contiguous.
    Mutates: y, in rows that have an adapter.
    Raises:
        ShapeError, DtypeError: tensors that do not fit the stack.
    """
    if stack.dtype != torch.float32:
        cpu.lora_add_(y, x, stack, token_adapter)
        return
    if not isinstance(token_adapter, LoraPlan):
        token_adapter = LoraPlan(token_adapter, stack.num_adapters)
    _check(y, x, stack, token_adapter)
    native = packed_stack(stack)
    if token_adapter.is_base_only or native.is_empty:
        return
    segments, rows = token_adapter.segments
    library.library().tn_lora_add(
        x.data_ptr(),
        x.stride(0),
        y.data_ptr(),
        y.stride(0),
        native.table.data_ptr(),
        segments.data_ptr(),
        segments.shape[0],
        rows.data_ptr(),
    )


def _common_dtype(factors: list[Tensor]) -> torch.dtype:
    dtypes = {_own_dtype(factor) for factor in factors}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _own_dtype(factor: Tensor) -> torch.dtype:
    """The dtype that a factor is packed in: its own where the products read that one."""
    return factor.dtype if library.has_kind(factor.dtype) else torch.float32


def _check(y: Tensor, x: Tensor, stack: LoraStack, plan: LoraPlan) -> None:
    expected_y, expected_x = (x.shape[0], sum(stack.slice_sizes)), (y.shape[0], stack.in_features)
    if y.shape != expected_y or x.shape != expected_x or plan.num_rows != x.shape[0]:
        raise ShapeError(
            f"y is {tuple(y.shape)}, x {tuple(x.shape)} and the plan has {plan.num_rows} rows; "
            f"the stack takes [T, {sum(stack.slice_sizes)}] and [T, {stack.in_features}]"
        )
    if not x.dtype == y.dtype == torch.float32:
        raise DtypeError(f"x is {x.dtype} and y {y.dtype}; the native op takes float32")
    if x.stride(1) != 1 or y.stride(1) != 1:
        raise ShapeError("rows of x and y are contiguous")
    plan.check_adapters(stack.num_adapters)
