"""Gated activations on a GPU. Free of host syncs: may be captured in a graph."""

import torch
import triton
from torch import Tensor

from tenora_kernels.activation.triton_kernels import gated_kernel
from tenora_kernels.compile_table import CompileCase
from tenora_kernels.errors import DtypeError, ShapeError

BLOCK = 1024
NUM_WARPS = 4


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up; see `reference.silu_mul`.

    Args: gate_up [..., 2 I], the gate half first, of a dtype up to float32. Returns: [..., I].
    Raises:
        ShapeError, DtypeError: what is not two halves, or float64.
    """
    return _launch(gate_up, is_silu=True)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up with the tanh approximation; see `reference.gelu_tanh_mul`.

    Args: gate_up [..., 2 I], the gate half first, of a dtype up to float32. Returns: [..., I].
    Raises:
        ShapeError, DtypeError: what is not two halves, or float64.
    """
    return _launch(gate_up, is_silu=False)


def _launch(gate_up: Tensor, *, is_silu: bool) -> Tensor:
    if gate_up.shape[-1] % 2:
        raise ShapeError(f"gate_up has {gate_up.shape[-1]} columns; it holds two halves alike")
    if gate_up.dtype.itemsize > 4:
        raise DtypeError(f"gate_up is {gate_up.dtype}; cast it to float32 or narrower")
    size = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    rows = gate_up.reshape(-1, 2 * size)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    gated_kernel[(rows.shape[0], triton.cdiv(size, BLOCK))](
        rows,
        out,
        size,
        rows.stride(0),
        IS_SILU=is_silu,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return out


def _case(name: str, *, is_silu: bool) -> CompileCase:
    sizes = ("size", "gate_up_stride")
    return CompileCase(
        name,
        gated_kernel,
        dict.fromkeys(("gate_up", "out"), "*bf16") | dict.fromkeys(sizes, "i32"),
        {"IS_SILU": is_silu, "BLOCK": BLOCK},
        NUM_WARPS,
        divisible_by_16=sizes,
    )


COMPILE_CASES = [_case("silu_mul", is_silu=True), _case("gelu_tanh_mul", is_silu=False)]
