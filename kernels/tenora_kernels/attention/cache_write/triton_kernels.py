"""Writes to the cache on a GPU, and its numbers in float8: device code; `launch.py` launches it."""

import triton
import triton.language as tl

from tenora_kernels.rope.triton_kernels import rotated_halves


@triton.jit
def write_kv_kernel(
    k,  # [T, HEADS, HEAD_DIM], strided by token and head
    v,
    k_cache,  # [HEADS, num_slots, HEAD_DIM] contiguous
    v_cache,
    k_scale,
    v_scale,
    slot_mapping,  # int64 [T]
    k_stride_token,
    k_stride_head,
    v_stride_token,
    v_stride_head,
    num_slots,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One token: all its heads to one slot of every head; a negative slot stores nothing."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    head = tl.arange(0, BLOCK_H).to(tl.int64)  # [BLOCK_H]
    dim = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    is_live = in_head(head < HEADS, HEAD_DIM, BLOCK_D)  # [BLOCK_H, BLOCK_D]
    to = (head[:, None] * num_slots + slot) * HEAD_DIM + dim[None, :]
    keys = tl.load(
        k + token * k_stride_token + head[:, None] * k_stride_head + dim[None, :],
        mask=is_live,
        other=0.0,
    )
    values = tl.load(
        v + token * v_stride_token + head[:, None] * v_stride_head + dim[None, :],
        mask=is_live,
        other=0.0,
    )
    scale_at = tl.minimum(head, HEADS - 1) * SCALE_STRIDE
    store_numbers(k_cache + to, keys, is_live, k_scale + scale_at, IS_FP8)
    store_numbers(v_cache + to, values, is_live, v_scale + scale_at, IS_FP8)


@triton.jit
def rotate_and_store_kernel(
    q,  # [T, Q_HEADS, HEAD_DIM], strided by token and head
    k,  # [T, HEADS, HEAD_DIM], likewise
    v,
    cos,  # float32 [max_positions, HEAD_DIM] contiguous
    sin,
    positions,  # int64 [T]
    q_out,  # [T, Q_HEADS, HEAD_DIM] contiguous
    k_cache,  # [HEADS, num_slots, HEAD_DIM] contiguous
    v_cache,
    k_scale,
    v_scale,
    slot_mapping,  # int64 [T]
    q_stride_token,
    q_stride_head,
    k_stride_token,
    k_stride_head,
    v_stride_token,
    v_stride_head,
    num_slots,
    Q_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """BLOCK_H heads of one token: of q, rotated, first; then of k, rotated, and v to its slot."""
    HALF: tl.constexpr = HEAD_DIM // 2
    Q_BLOCKS: tl.constexpr = (Q_HEADS + BLOCK_H - 1) // BLOCK_H
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions + token).to(tl.int64)
    cos_row = cos + position * HEAD_DIM
    sin_row = sin + position * HEAD_DIM
    if block < Q_BLOCKS:
        head, dim, is_live, first, second = rotated_halves(
            q + token * q_stride_token, cos_row, sin_row, q_stride_head, block * BLOCK_H,
            Q_HEADS, HEAD_DIM, BLOCK_H, BLOCK_HALF,
        )  # fmt: skip
        to = q_out + (token * Q_HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
        tl.store(to, first, mask=is_live)
        tl.store(to + HALF, second, mask=is_live)
    else:
        slot = tl.load(slot_mapping + token).to(tl.int64)
        if slot >= 0:
            head, dim, is_live, first, second = rotated_halves(
                k + token * k_stride_token, cos_row, sin_row, k_stride_head,
                (block - Q_BLOCKS) * BLOCK_H, HEADS, HEAD_DIM, BLOCK_H, BLOCK_HALF,
            )  # fmt: skip
            to = (head[:, None] * num_slots + slot) * HEAD_DIM + dim[None, :]
            scale_at = tl.minimum(head, HEADS - 1) * SCALE_STRIDE
            store_numbers(k_cache + to, first, is_live, k_scale + scale_at, IS_FP8)
            store_numbers(k_cache + to + HALF, second, is_live, k_scale + scale_at, IS_FP8)
            at = v + token * v_stride_token + head[:, None] * v_stride_head + dim[None, :]
            first = tl.load(at, mask=is_live, other=0.0)
            second = tl.load(at + HALF, mask=is_live, other=0.0)
            store_numbers(v_cache + to, first, is_live, v_scale + scale_at, IS_FP8)
            store_numbers(v_cache + to + HALF, second, is_live, v_scale + scale_at, IS_FP8)


@triton.jit
def store_numbers(to, numbers, is_live, scales, IS_FP8: tl.constexpr):
    """Store [BLOCK_H, columns] in the cache's dtype; `scales` points at each head's."""
    if IS_FP8:
        scale = tl.load(scales)  # [BLOCK_H]
        tl.store(to, to_e4m3(numbers.to(tl.float32) / scale[:, None]), mask=is_live)
    else:
        tl.store(to, numbers.to(to.dtype.element_ty), mask=is_live)


@triton.jit
def to_e4m3(x):
    """Return float32 as bits of float8 e4m3fn, nearest even, saturated; NaN stays NaN."""
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # below 2^-6 steps are 2^-9, the unit in the last place of 2^14
    small = (size + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    coded = tl.where(size < 0.015625, small, normal)
    is_number = x == x  # noqa: PLR0124 - false of NaN alone
    return tl.where(is_number, sign | coded, 0x7F).to(tl.uint8)


@triton.jit
def in_head(is_row, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the mask of rows and of a head's numbers: [rows, BLOCK_D], or [rows, 1] for all.

    A mask of a column costs no register for each element, of which some devices have too few.
    """
    if HEAD_DIM == BLOCK_D:
        mask = is_row[:, None]
    else:
        mask = is_row[:, None] & (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
    return mask


@triton.jit
def from_e4m3(bits):
    """Return bits of float8 e4m3fn as float16 divided by 256, exactly, on any device."""
    wide = bits.to(tl.int16)
    moved = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    quiet = tl.where((wide & 0x7F) == 0x7F, 0x7E00, moved)
    return quiet.to(tl.int16).to(tl.float16, bitcast=True)
