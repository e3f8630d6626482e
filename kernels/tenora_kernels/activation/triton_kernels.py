"""Gated activations on a GPU: device code only; `triton_ops.py` launches it."""

import triton
import triton.language as tl


@triton.jit
def gated_kernel(
    gate_up,  # [T, 2 size], rows gate_up_stride apart
    out,  # [T, size] contiguous
    size,
    gate_up_stride,
    IS_SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one row; the activation is rounded before the product, as the reference."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    has_column = column < size
    first = gate_up + row * gate_up_stride
    gate = tl.load(first + column, mask=has_column, other=0.0).to(tl.float32)
    up = tl.load(first + size + column, mask=has_column, other=0.0).to(tl.float32)
    if IS_SILU:
        active = gate * sigmoid(gate)
    else:
        # 0.5 (1 + tanh(u)) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        active = gate * sigmoid(inner)
    active = active.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + column, (active * up).to(out.dtype.element_ty), mask=has_column)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x) by the exponential that never overflows."""
    t = tl.exp(-tl.abs(x))
    return tl.where(x < 0, t, 1.0) / (1.0 + t)
