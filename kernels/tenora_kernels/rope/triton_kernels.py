"""Rotary position embedding on a GPU: device code only; `triton_ops.py` launches it."""

import triton
import triton.language as tl


@triton.jit
def rotated_halves(
    x,  # of one token
    cos,  # of one token, [HEAD_DIM]
    sin,
    head_stride,
    first_head,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Return heads, halves' numbers, their mask and both rotated halves [BLOCK_HEADS, BLOCK_HALF].

    cos and sin are rounded to x's dtype first; products and sums are float32.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    head = (first_head + tl.arange(0, BLOCK_HEADS)).to(tl.int64)  # [BLOCK_HEADS]
    dim = tl.arange(0, BLOCK_HALF)  # [BLOCK_HALF]
    has_dim = dim < HALF
    is_live = (head < num_heads)[:, None] & has_dim[None, :]
    dtype = x.dtype.element_ty
    cos_1 = tl.load(cos + dim, mask=has_dim, other=0.0).to(dtype).to(tl.float32)[None, :]
    cos_2 = tl.load(cos + HALF + dim, mask=has_dim, other=0.0).to(dtype).to(tl.float32)[None, :]
    sin_1 = tl.load(sin + dim, mask=has_dim, other=0.0).to(dtype).to(tl.float32)[None, :]
    sin_2 = tl.load(sin + HALF + dim, mask=has_dim, other=0.0).to(dtype).to(tl.float32)[None, :]
    at = x + head[:, None] * head_stride + dim[None, :]
    first = tl.load(at, mask=is_live, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=is_live, other=0.0).to(tl.float32)
    rotated_1 = (first * cos_1 - second * sin_1).to(dtype)
    rotated_2 = (second * cos_2 + first * sin_2).to(dtype)
    return head, dim, is_live, rotated_1, rotated_2


@triton.jit
def rope_kernel(
    q,  # [T, q_heads, HEAD_DIM], strided by token and head
    k,  # [T, kv_heads, HEAD_DIM], likewise
    cos,  # [T, HEAD_DIM], rows contiguous
    sin,
    q_out,  # contiguous
    k_out,  # contiguous
    q_stride_token,
    q_stride_head,
    k_stride_token,
    k_stride_head,
    cos_stride,
    sin_stride,
    q_heads,
    kv_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """BLOCK_HEADS heads of one token, of q first and then of k."""
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    q_blocks = tl.cdiv(q_heads, BLOCK_HEADS)
    block = tl.program_id(1)
    cos_row = cos + token * cos_stride
    sin_row = sin + token * sin_stride
    if block < q_blocks:
        head, dim, is_live, first, second = rotated_halves(
            q + token * q_stride_token, cos_row, sin_row, q_stride_head, block * BLOCK_HEADS,
            q_heads, HEAD_DIM, BLOCK_HEADS, BLOCK_HALF,
        )  # fmt: skip
        to = q_out + (token * q_heads + head[:, None]) * HEAD_DIM + dim[None, :]
        tl.store(to, first, mask=is_live)
        tl.store(to + HALF, second, mask=is_live)
    else:
        head, dim, is_live, first, second = rotated_halves(
            k + token * k_stride_token, cos_row, sin_row, k_stride_head,
            (block - q_blocks) * BLOCK_HEADS, kv_heads, HEAD_DIM, BLOCK_HEADS, BLOCK_HALF,
        )  # fmt: skip
        to = k_out + (token * kv_heads + head[:, None]) * HEAD_DIM + dim[None, :]
        tl.store(to, first, mask=is_live)
        tl.store(to + HALF, second, mask=is_live)
