"""Paged attention and cache writes on a GPU: checks, grids and tile shapes; kernels beside it.

Every function is free of host syncs with a `DeviceAttentionBatch` and may be captured in a graph.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from tenora_kernels.attention import triton_kernels as kernels
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.attention.compile_cases import COMPILE_CASES
from tenora_kernels.attention.device_batch import DeviceAttentionBatch
from tenora_kernels.attention.fp8_reference import FP8
from tenora_kernels.attention.tiles import (
    MAX_PARTS,
    SPLIT,
    decode_tiles,
    padded_dim,
    prefill_tiles,
    write_warps,
)
from tenora_kernels.errors import DtypeError, ShapeError

__all__ = ["COMPILE_CASES", "paged_attention", "write_kv"]


class _Layer(NamedTuple):
    """One layer's cache and the rules of its scores, as every kernel takes them."""

    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor
    v_scale: Tensor
    scale: float
    soft_cap: float | None
    sliding_window: int | None

    def constants(self) -> dict[str, Any]:
        head_dim = self.k_cache.shape[3]
        return {
            "HEAD_DIM": head_dim,
            "BLOCK_D": padded_dim(head_dim),
            "BLOCK_SIZE": self.k_cache.shape[2],
            "SCALE_STRIDE": int(self.k_scale.numel() > 1),
            "HAS_WINDOW": self.sliding_window is not None,
            "HAS_CAP": self.soft_cap is not None,
            "IS_FP8": self.k_cache.dtype == torch.uint8,
        }


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
    _check_caches(k_cache, v_cache, k_scale, v_scale)
    tokens, heads, head_dim = k.shape
    if v.shape != k.shape or (heads, head_dim) != (k_cache.shape[0], k_cache.shape[3]):
        raise ShapeError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} do not fit a cache {tuple(k_cache.shape)}"
        )
    if slot_mapping.shape != (tokens,):
        raise ShapeError(f"{tokens} tokens need as many slots, got {tuple(slot_mapping.shape)}")
    if tokens == 0:
        return
    k, v = _unit_last_stride(k), _unit_last_stride(v)
    block_h = triton.next_power_of_2(heads)
    kernels.write_kv_kernel[(tokens,)](
        k,
        v,
        _bits(k_cache),
        _bits(v_cache),
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
    )


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: DeviceAttentionBatch | AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Return causal attention of each query over its own sequence; see `reference`.

    A query's bits depend on its own sequence up to itself and on whether it is that sequence's
    only query of the step, on nothing else. Scores and sums are float32.
    Args: q [T, Hq, D] may be strided by token and head; D up to 256. A host batch is copied to the
        device first, which no graph can capture. k_scale, v_scale: see `write_kv`.
    Returns: [T, Hq, D], contiguous; rows that belong to no sequence are not written.
    Raises:
        ShapeError: q does not fit the cache, or a cache is not contiguous.
        DtypeError: a float8 cache without scales, or scales without one.
    """
    _check_caches(k_cache, v_cache, k_scale, v_scale)
    heads, head_dim = k_cache.shape[0], k_cache.shape[3]
    if q.shape[1] % heads or q.shape[2] != head_dim:
        raise ShapeError(f"q {tuple(q.shape)} does not fit a cache {tuple(k_cache.shape)}")
    if isinstance(batch, AttentionBatch):
        batch = DeviceAttentionBatch.from_host(batch, q.device)
    q = _unit_last_stride(q)
    layer = _Layer(
        _bits(k_cache),
        _bits(v_cache),
        q if k_scale is None else k_scale,
        q if v_scale is None else v_scale,
        scale,
        soft_cap,
        sliding_window,
    )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0 or batch.num_sequences == 0:
        return out
    if batch.has_decodes:
        _decode(q, layer, batch, out)
    if batch.max_query_len > 1:
        _prefill(q, layer, batch, out)
    return out


def _decode(q: Tensor, layer: _Layer, batch: DeviceAttentionBatch, out: Tensor) -> None:
    """Write the rows of all sequences with one query."""
    num_heads, head_dim = q.shape[1:]
    kv_heads, sequences = layer.k_cache.shape[0], batch.num_sequences
    tiles = decode_tiles(head_dim, num_heads // kv_heads, q.dtype)
    max_parts = _most_parts(batch.max_seq_len, layer.sliding_window)
    # with one part there is nothing to join, and the kernel never stores a partial sum
    part_mixed, part_peak, part_mass = (
        torch.empty(sequences, num_heads, max_parts, width, dtype=torch.float32, device=q.device)
        if max_parts > 1
        else out
        for width in (head_dim, 1, 1)
    )
    constants = layer.constants()
    kernels.decode_kernel[(sequences, kv_heads, max_parts)](
        q,
        layer.k_cache,
        layer.v_cache,
        layer.k_scale,
        layer.v_scale,
        batch.block_tables,
        batch.seq_lens,
        batch.cu_query_lens,
        out,
        part_mixed,
        part_peak,
        part_mass,
        q.stride(0),
        q.stride(1),
        batch.block_tables.stride(0),
        layer.k_cache.shape[1] * layer.k_cache.shape[2],
        max_parts,
        layer.scale,
        layer.soft_cap or 0.0,
        layer.sliding_window or 0,
        GROUP=num_heads // kv_heads,
        SPLIT=SPLIT,
        MAX_PARTS=MAX_PARTS,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **constants,
    )
    if max_parts == 1:
        return
    kernels.join_parts_kernel[(sequences, num_heads)](
        part_mixed,
        part_peak,
        part_mass,
        batch.seq_lens,
        batch.cu_query_lens,
        out,
        max_parts,
        layer.sliding_window or 0,
        HEAD_DIM=head_dim,
        HAS_WINDOW=layer.sliding_window is not None,
        SPLIT=SPLIT,
        MAX_PARTS=MAX_PARTS,
        BLOCK_D=padded_dim(head_dim),
        num_warps=4,
    )


def _most_parts(max_seq_len: int, sliding_window: int | None) -> int:
    """The parts of the longest sequence; a window may begin and end inside a part."""
    span = max_seq_len
    if sliding_window is not None:
        span = min(span, sliding_window + SPLIT - 1)
    return max(1, min(MAX_PARTS, -(-span // SPLIT)))


def _prefill(q: Tensor, layer: _Layer, batch: DeviceAttentionBatch, out: Tensor) -> None:
    """Write the rows of all sequences with several queries."""
    tokens, num_heads, head_dim = q.shape
    kv_heads, sequences = layer.k_cache.shape[0], batch.num_sequences
    group = num_heads // kv_heads
    tiles = prefill_tiles(head_dim, group, q.dtype)
    # sequence s begins at tile cu[s] // block_q + s; the host knows the bound only
    num_tiles = tokens // (tiles.block_m // group) + sequences
    kernels.prefill_kernel[(num_tiles, kv_heads)](
        q,
        layer.k_cache,
        layer.v_cache,
        layer.k_scale,
        layer.v_scale,
        batch.block_tables,
        batch.seq_lens,
        batch.cu_query_lens,
        out,
        q.stride(0),
        q.stride(1),
        batch.block_tables.stride(0),
        layer.k_cache.shape[1] * layer.k_cache.shape[2],
        sequences,
        layer.scale,
        layer.soft_cap or 0.0,
        layer.sliding_window or 0,
        GROUP=group,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **layer.constants(),
    )


def _bits(cache: Tensor) -> Tensor:
    """The cache as the kernels take it: float8 as bytes, which every device reads."""
    return cache.view(torch.uint8) if cache.dtype == FP8 else cache


def _unit_last_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_caches(
    k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
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
