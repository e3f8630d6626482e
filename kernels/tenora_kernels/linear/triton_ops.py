"""The deterministic product on a GPU: a row has the same bits whatever shares its batch.

Nothing of the tiling depends on the number of rows, and the inner dimension is never split
between programs: each element adds its terms in one fixed order. For the batch-invariant mode;
elsewhere the vendor's product is faster.
"""

import torch
import triton
from torch import Tensor

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.linear.triton_kernels import linear_kernel

# chosen for registers and shared memory on sm_80, sm_90 and gfx942; not yet measured
TILES = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
LAUNCH = {"num_warps": 4, "num_stages": 3}
# float32 has no exact tensor core product, and multiply-adds need more registers
TILES_FLOAT32 = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8}
LAUNCH_FLOAT32 = {"num_warps": 4, "num_stages": 2}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


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
    num_tokens, in_features = x.shape
    out_features = weight.shape[0]
    y = x.new_empty(num_tokens, out_features)
    if y.numel() == 0:
        return y
    is_wide = x.dtype == torch.float32
    tiles = TILES_FLOAT32 if is_wide else TILES
    num_tiles = triton.cdiv(num_tokens, tiles["BLOCK_M"]) * triton.cdiv(
        out_features, tiles["BLOCK_N"]
    )
    linear_kernel[(num_tiles,)](
        x,
        weight,
        bias,
        y,
        num_tokens,
        out_features,
        in_features,
        x.stride(0),
        y.stride(0),
        **tiles,
        **(LAUNCH_FLOAT32 if is_wide else LAUNCH),
        enable_fp_fusion=True,
    )
    return y


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


def _case(dtype: str) -> CompileCase:
    is_wide = dtype == "fp32"
    sizes = ("num_tokens", "out_features", "in_features", "x_stride", "y_stride")
    return CompileCase(
        f"linear.{dtype}",
        linear_kernel,
        dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "y_ptr"), f"*{dtype}")
        | dict.fromkeys(sizes, "i32"),
        TILES_FLOAT32 if is_wide else TILES,
        divisible_by_16=sizes[1:],
        **(LAUNCH_FLOAT32 if is_wide else LAUNCH),
    )


COMPILE_CASES = [_case(dtype) for dtype in ("bf16", "fp32")]
