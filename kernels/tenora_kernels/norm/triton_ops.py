"""RMS normalisation on a GPU: one program for each row, its width a constant of the kernel.

Free of host syncs: may be captured in a graph.
"""

import torch
import triton
from torch import Tensor

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.norm.triton_kernels import rms_norm_kernel

# a row lies in the registers of one program
MAX_SIZE = 32768


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x scaled to unit root mean square, times `weight`; see `reference.rms_norm`.

    A row's bits depend on the row alone.
    Args: x [..., H] of a dtype up to float32, H up to 32768; weight [H] of x's dtype.
    Raises:
        ShapeError, DtypeError: tensors that do not fit together.
    """
    return _launch(x, None, weight, eps)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `(rms_norm(x + residual), x + residual)`, reading and writing each number once.

    Args: x, residual [..., H] of one dtype; the sum is rounded to that dtype first.
    Raises:
        ShapeError, DtypeError: tensors that do not fit together.
    """
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ShapeError(
            f"x is {tuple(x.shape)} of {x.dtype}, residual {tuple(residual.shape)} of "
            f"{residual.dtype}; make both alike"
        )
    return _launch(x, residual, weight, eps)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    size = x.shape[-1]
    if weight.shape != (size,) or not 0 < size <= MAX_SIZE:
        raise ShapeError(
            f"rows of {size} take a weight of as many numbers, at most {MAX_SIZE}, "
            f"got {tuple(weight.shape)}"
        )
    if weight.dtype != x.dtype or x.dtype.itemsize > 4:
        raise DtypeError(f"x is {x.dtype} and weight {weight.dtype}; cast to one, at most float32")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    summed = out if residual is None else torch.empty_like(out)
    if out.numel() == 0:
        return out, summed
    rows = _rows(x)
    residual_rows = None if residual is None else _rows(residual)
    rms_norm_kernel[(rows.shape[0],)](
        rows,
        residual_rows,
        weight.contiguous(),
        out,
        summed,
        rows.stride(0),
        0 if residual_rows is None else residual_rows.stride(0),
        eps,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        num_warps=_warps(size),
        enable_fp_fusion=True,
    )
    return out, summed


def _rows(x: Tensor) -> Tensor:
    """x as [rows, H] with neighbouring numbers, copied only where it must be."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _warps(size: int) -> int:
    return int(max(1, min(16, triton.next_power_of_2(size) // 512)))


def _case(name: str, size: int, *, has_residual: bool) -> CompileCase:
    pointers = dict.fromkeys(("x", "residual", "weight", "out", "summed"), "*bf16")
    strides = ("x_stride", "residual_stride")
    constants = {"SIZE": size, "BLOCK": triton.next_power_of_2(size)}
    return CompileCase(
        name,
        rms_norm_kernel,
        pointers | dict.fromkeys(strides, "i32") | {"eps": "fp32"},
        constants if has_residual else constants | {"residual": None},
        _warps(size),
        divisible_by_16=strides,
    )


COMPILE_CASES = [
    _case("rms_norm.8b", 4096, has_residual=False),
    _case("add_rms_norm.8b", 4096, has_residual=True),
    _case("add_rms_norm.smollm2", 576, has_residual=True),
    _case("add_rms_norm.widest", 32768, has_residual=True),
]
