"""The largest output of each row of a product, found through its weight rounded to 8 bits.

A greedy choice needs one number of a vocabulary's thousands. The screen bounds all outputs at a
third of the product's arithmetic and half of its bytes; the few that may be the largest are then
computed as the product computes them. `src/screen.h` has the bound.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.native import library
from tenora_kernels.native.library import KINDS, LargestArgs, PackedMemory, PackedWeight, Screen

SCREENED = (torch.float32, torch.bfloat16, torch.int8)


@dataclass(frozen=True, slots=True)
class Largest:
    """Where each row's largest output is, and how it was found.

    `index` int64 [T], the lowest among equals, 0 where nothing is comparable; `is_finite` bool [T],
    whether all outputs of the row are; `exact_panels` int64 [T], how many panels of the weight were
    computed. The index of a row that is not finite means nothing.
    """

    index: Tensor
    is_finite: Tensor
    exact_panels: Tensor


class PackedScreen:
    """What decides which outputs of one product can be the largest."""

    def __init__(
        self,
        weight: Tensor,
        packed: PackedWeight,
        memory: PackedMemory | None = None,
        *,
        steps: Tensor | None = None,
    ) -> None:
        """Round `weight` and `steps`, as `PackedWeight` took them for `packed`.

        Raises:
            DtypeError: a dtype that is not in `SCREENED`.
            ValueError: a column is not finite or has a norm above 1e20, or there is none.
        """
        if weight.dtype not in SCREENED:
            raise DtypeError(f"no screen of {weight.dtype}; it takes {SCREENED}")
        source, (n, k) = weight.detach().contiguous(), weight.shape
        if source.numel() == 0:
            raise ValueError("a weight without elements has no largest output")
        size = library.library().tn_screen_bytes(n, k)
        self._data = (memory or PackedMemory(size)).take(size)
        is_screen = library.library().tn_pack_screen(
            KINDS[source.dtype],
            source.data_ptr(),
            None if steps is None else steps.data_ptr(),
            n,
            k,
            self._data.data_ptr(),
        )
        if not is_screen:
            raise ValueError("a weight is not finite or too large, so nothing bounds its outputs")
        self._packed = packed
        self._screen = Screen(n, k, self._data.data_ptr())

    def largest(self, x: Tensor, left_out: Tensor, *, rounds_input: bool = False) -> Largest:
        """Return the choice for each row of x [T, k], float32, among columns not in `left_out`.

        The product is that of `packed` without a bias; `left_out` is bool [n].

        Raises:
            ShapeError, DtypeError: x or `left_out` is not what the weight takes.
        """
        if (x.dtype, left_out.dtype) != (torch.float32, torch.bool):
            raise DtypeError(f"x is float32 and left_out bool, not {x.dtype}, {left_out.dtype}")
        if x.dim() != 2 or x.shape[1] != self._screen.k or x.stride(1) != 1:
            raise ShapeError(f"x is {tuple(x.shape)}, the weight takes rows of {self._screen.k}")
        if left_out.shape != (self._screen.n,) or not left_out.is_contiguous():
            raise ShapeError(f"left_out is {tuple(left_out.shape)}, not [{self._screen.n}]")
        rows = x.shape[0]
        found = Largest(
            torch.empty(rows, dtype=torch.int64),
            torch.empty(rows, dtype=torch.bool),
            torch.empty(rows, dtype=torch.int64),
        )
        arguments = LargestArgs(
            screen=ctypes.addressof(self._screen),
            weight=self._packed.address,
            x=x.data_ptr(),
            x_stride=x.stride(0),
            rows=rows,
            rounds=rounds_input,
            is_left_out=left_out.data_ptr(),
            index=found.index.data_ptr(),
            is_finite=found.is_finite.data_ptr(),
            exact_panels=found.exact_panels.data_ptr(),
        )
        library.library().tn_largest_outputs(ctypes.addressof(arguments))
        return found
