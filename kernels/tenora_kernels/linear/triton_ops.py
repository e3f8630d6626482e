"""The deterministic product on a GPU: a row has the same bits whatever shares its batch.

A sum over the inputs is cut into splits of fixed size, added in order. Few tiles: each split is
computed by a program of its own into a plane, and the planes are added. Many tiles: one program
adds them. The tiles are the same, so the bits are. For the batch-invariant mode; elsewhere the
vendor's product is faster.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.linear.triton_kernels import add_planes_kernel, linear_kernel

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SPLIT_SIZE = 1024
# a GPU has about this many multiprocessors; with as many tiles there is no need to split
ENOUGH_TILES = 128
ADD_BLOCK = 1024


class Launch(NamedTuple):
    """The one tiling of a dtype, whatever the number of rows. Not yet measured."""

    tiles: dict[str, int]
    num_warps: int
    num_stages: int


HALF = Launch(
    {"SPLIT_SIZE": SPLIT_SIZE, "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}, 8, 3
)
# float32 has no exact tensor core product, and multiply-adds need more registers
FLOAT32 = Launch(
    {"SPLIT_SIZE": SPLIT_SIZE, "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8}, 4, 2
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`: [T, out] in x's dtype, accumulated in float32.

    Semantics: y[t, o] = sum_i x[t, i] * weight[o, i] + bias[o]
    A row's result depends on its own x, the weight and the bias only, bit for bit.
    Args: x [T, in], rows may lie apart; weight [out, in], contiguous; bias [out] or None; all of
    one dtype, float16, bfloat16 or float32, on one GPU.
    Raises:
        ShapeError, DtypeError: tensors that do not fit together.
    Reference: `reference.linear`.
    """
    _check(x, weight, bias)
    (num_tokens, in_features), out_features = x.shape, weight.shape[0]
    y = x.new_empty(num_tokens, out_features)
    if y.numel() == 0:
        return y
    tiles = FLOAT32.tiles if x.dtype == torch.float32 else HALF.tiles
    num_tiles = triton.cdiv(num_tokens, tiles["BLOCK_M"]) * triton.cdiv(
        out_features, tiles["BLOCK_N"]
    )
    num_splits = triton.cdiv(in_features, SPLIT_SIZE)
    if num_splits == 1 or num_tiles >= ENOUGH_TILES:
        _launch((num_tiles, 1), x, weight, bias, out=y, num_splits=num_splits)
        return y
    planes = x.new_empty(num_splits, num_tokens, out_features, dtype=torch.float32)
    _launch((num_tiles, num_splits), x, weight, None, out=planes, num_splits=1)
    add_planes_kernel[(num_tokens, triton.cdiv(out_features, ADD_BLOCK))](
        planes,
        bias,
        y,
        num_tokens,
        out_features,
        num_splits,
        BLOCK_N=ADD_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return y


def _launch(
    grid: tuple[int, int],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    out: Tensor,
    num_splits: int,
) -> None:
    launch = FLOAT32 if x.dtype == torch.float32 else HALF
    linear_kernel[grid](
        x,
        weight,
        bias,
        out,
        x.shape[0],
        weight.shape[0],
        x.shape[1],
        x.stride(0),
        out.stride(-2),
        num_splits,
        **launch.tiles,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        enable_fp_fusion=True,
    )


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"x is [T, in] and weight [out, in], got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if x.stride(1) != 1 or not weight.is_contiguous():
        raise ShapeError("x's last dimension and the weight must be contiguous; call contiguous()")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"bias is {tuple(bias.shape)}, the weight has {weight.shape[0]} rows")
    dtypes = {x.dtype, weight.dtype, x.dtype if bias is None else bias.dtype}
    if len(dtypes) != 1 or x.dtype not in DTYPES:
        raise DtypeError(f"x, weight and bias must share one of {DTYPES}, got {dtypes}")


def _case(dtype: str, launch: Launch) -> CompileCase:
    sizes = ("num_tokens", "num_splits", "out_features", "in_features", "x_stride", "y_stride")
    return CompileCase(
        f"linear.{dtype}",
        linear_kernel,
        dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "y_ptr"), f"*{dtype}")
        | dict.fromkeys(sizes, "i32"),
        launch.tiles,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        divisible_by_16=sizes[2:],
    )


COMPILE_CASES = [
    _case("bf16", HALF),
    _case("fp32", FLOAT32),
    CompileCase(
        "add_planes.bf16",
        add_planes_kernel,
        {"planes_ptr": "*fp32", "bias_ptr": "*bf16", "y_ptr": "*bf16"}
        | dict.fromkeys(("num_tokens", "out_features", "num_planes"), "i32"),
        {"BLOCK_N": ADD_BLOCK},
        divisible_by_16=("out_features",),
    ),
]
