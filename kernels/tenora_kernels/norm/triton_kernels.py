"""RMS normalisation on a GPU: device code only; `triton_ops.py` launches it."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x,  # [T, SIZE], rows x_stride apart
    residual,  # [T, SIZE], rows residual_stride apart, or None
    weight,  # [SIZE]
    out,  # [T, SIZE] contiguous
    summed,  # [T, SIZE] contiguous, written where there is a residual
    x_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row, in registers from its sum to its product: rounded where the reference rounds."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # [BLOCK]
    has_column = column < SIZE
    values = tl.load(x + row * x_stride + column, mask=has_column, other=0.0).to(tl.float32)
    if residual is not None:
        added = tl.load(residual + row * residual_stride + column, mask=has_column, other=0.0)
        rounded = (values + added.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(summed + row * SIZE + column, rounded, mask=has_column)
        values = rounded.to(tl.float32)
    variance = tl.sum(values * values, axis=0) / SIZE
    normal = (values * tl.rsqrt(variance + eps)).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=has_column, other=0.0).to(tl.float32)
    result = (normal * factor).to(out.dtype.element_ty)
    tl.store(out + row * SIZE + column, result, mask=has_column)
