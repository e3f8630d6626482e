"""Checks and launches of the writes to a cache. Free of host syncs: may be captured in a graph."""

import torch
import triton
from torch import Tensor

from tenora_kernels.attention.cache_write import triton_kernels as kernels
from tenora_kernels.attention.fp8_reference import FP8
from tenora_kernels.attention.tiles import padded_dim, write_warps
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.rope.rows import RopeRows

# heads of a program that rotates
BLOCK_H = 8
ROTATE_WARPS = 2


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Store each token's key and value at its slot; see `reference.write_kv`.

    Args: a negative slot stores nothing, so padded tokens have -1; k and v may be strided by
        token and head. k_scale, v_scale float32 [Hkv] or [1]: for a cache of float8 e4m3, which
        holds k / k_scale, see `fp8_reference`.
    Mutates: k_cache and v_cache, at the given slots only.
    Raises:
        ShapeError: a cache that is not contiguous, or shapes that do not fit it.
        DtypeError: a float8 cache without scales, or scales without one.
    """
    check_caches(k_cache, v_cache, k_scale, v_scale)
    tokens, heads, head_dim = k.shape
    _check_tokens(k, v, k_cache, slot_mapping)
    if tokens == 0:
        return
    k, v = with_unit_stride(k), with_unit_stride(v)
    block_h = triton.next_power_of_2(heads)
    kernels.write_kv_kernel[(tokens,)](
        k,
        v,
        as_bits(k_cache),
        as_bits(v_cache),
        k if k_scale is None else k_scale,
        v if v_scale is None else v_scale,
        slot_mapping,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_cache.shape[1] * k_cache.shape[2],
        HEADS=heads,
        HEAD_DIM=head_dim,
        SCALE_STRIDE=int(k_scale is not None and k_scale.numel() > 1),
        IS_FP8=k_cache.dtype == FP8,
        BLOCK_H=block_h,
        BLOCK_D=padded_dim(head_dim),
        num_warps=write_warps(block_h, padded_dim(head_dim)),
        enable_fp_fusion=True,
    )


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: RopeRows,
    *,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Rotate q and k, store k and v, in one launch; see `reference.rotate_and_store`.

    Args: as `write_kv`; padded tokens have slot -1 and any position of the table. Products and
        sums of the rotation are float32 and rounded once.
    Mutates: the caches at the given slots only; q and k stay as they are.
    Returns: the rotated q [T, Hq, D], contiguous.
    Raises:
        ShapeError, DtypeError: as `write_kv`.
    """
    check_caches(k_cache, v_cache, k_scale, v_scale)
    tokens, q_heads, head_dim = q.shape
    heads = k.shape[1]
    _check_tokens(k, v, k_cache, slot_mapping)
    _check_rotation(q, k, rope)
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if tokens == 0:
        return q_out
    q, k, v = (with_unit_stride(x) for x in (q, k, v))
    blocks = triton.cdiv(q_heads, BLOCK_H) + triton.cdiv(heads, BLOCK_H)
    kernels.rotate_and_store_kernel[(tokens, blocks)](
        q,
        k,
        v,
        rope.cos.contiguous(),
        rope.sin.contiguous(),
        rope.positions,
        q_out,
        as_bits(k_cache),
        as_bits(v_cache),
        k if k_scale is None else k_scale,
        v if v_scale is None else v_scale,
        slot_mapping,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        k_cache.shape[1] * k_cache.shape[2],
        Q_HEADS=q_heads,
        HEADS=heads,
        HEAD_DIM=head_dim,
        SCALE_STRIDE=int(k_scale is not None and k_scale.numel() > 1),
        IS_FP8=k_cache.dtype == FP8,
        BLOCK_H=BLOCK_H,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=ROTATE_WARPS,
        enable_fp_fusion=True,
    )
    return q_out


def as_bits(cache: Tensor) -> Tensor:
    """Return the cache as the kernels take it: float8 as bytes, which every device reads."""
    return cache.view(torch.uint8) if cache.dtype == FP8 else cache


def with_unit_stride(x: Tensor) -> Tensor:
    """Return x with neighbouring numbers, copied only where it must be."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_rotation(q: Tensor, k: Tensor, rope: RopeRows) -> None:
    tokens, _, head_dim = q.shape
    if k.shape[0] != tokens or rope.positions.shape != (tokens,):
        raise ShapeError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and {tuple(rope.positions.shape)} positions "
            "differ in tokens"
        )
    if head_dim != k.shape[2] or rope.cos.shape[1] != head_dim or head_dim % 2:
        raise ShapeError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and tables {tuple(rope.cos.shape)} differ in "
            "head_dim, or it is odd"
        )


def _check_tokens(k: Tensor, v: Tensor, k_cache: Tensor, slot_mapping: Tensor) -> None:
    tokens, heads, head_dim = k.shape
    if v.shape != k.shape or (heads, head_dim) != (k_cache.shape[0], k_cache.shape[3]):
        raise ShapeError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} do not fit a cache {tuple(k_cache.shape)}"
        )
    if slot_mapping.shape != (tokens,):
        raise ShapeError(f"{tokens} tokens need as many slots, got {tuple(slot_mapping.shape)}")


def check_caches(
    k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
    """Raise where caches or scales are not what the kernels take."""
    if k_cache.shape != v_cache.shape or k_cache.dtype != v_cache.dtype:
        raise ShapeError(
            f"caches are {tuple(k_cache.shape)} of {k_cache.dtype} and {tuple(v_cache.shape)} of "
            f"{v_cache.dtype}; make both alike"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ShapeError("a layer's KV cache is contiguous [Hkv, num_blocks, block_size, D]")
    has_scales = k_scale is not None and v_scale is not None
    if has_scales != (k_cache.dtype == FP8):
        raise DtypeError(
            f"a cache of {k_cache.dtype}: give k_scale and v_scale with float8_e4m3fn only"
        )
    for scale in (k_scale, v_scale):
        if scale is not None and scale.shape not in ((1,), k_cache.shape[:1]):
            raise ShapeError(
                f"a cache of {k_cache.shape[0]} heads takes scales [1] or one for each head, "
                f"got {tuple(scale.shape)}"
            )
