"""Paged attention on a GPU: checks, grids and tile shapes; writes are in `cache_write/`.

Every function is free of host syncs with a `DeviceAttentionBatch` and may be captured in a graph.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tenora_kernels.attention import triton_kernels as kernels
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.attention.cache_write.launch import (
    as_bits,
    check_caches,
    rotate_and_store,
    with_unit_stride,
    write_kv,
)
from tenora_kernels.attention.compile_cases import COMPILE_CASES
from tenora_kernels.attention.device_batch import DeviceAttentionBatch
from tenora_kernels.attention.tiles import (
    MAX_PARTS,
    SPLIT,
    decode_tiles,
    padded_dim,
    prefill_tiles,
)
from tenora_kernels.errors import ShapeError

__all__ = ["COMPILE_CASES", "paged_attention", "rotate_and_store", "write_kv"]


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
    check_caches(k_cache, v_cache, k_scale, v_scale)
    heads, head_dim = k_cache.shape[0], k_cache.shape[3]
    if q.shape[1] % heads or q.shape[2] != head_dim:
        raise ShapeError(f"q {tuple(q.shape)} does not fit a cache {tuple(k_cache.shape)}")
    if isinstance(batch, AttentionBatch):
        batch = DeviceAttentionBatch.from_host(batch, q.device)
    q = with_unit_stride(q)
    layer = _Layer(
        as_bits(k_cache),
        as_bits(v_cache),
        q if k_scale is None else k_scale,
        q if v_scale is None else v_scale,
        float(scale),
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
        float(layer.soft_cap or 0),
        layer.sliding_window or 0,
        GROUP=num_heads // kv_heads,
        SPLIT=SPLIT,
        MAX_PARTS=MAX_PARTS,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        num_warps=tiles.num_warps,
        enable_fp_fusion=True,
        num_stages=tiles.num_stages,
        **layer.constants(),
    )
    if max_parts > 1:
        _join_parts((part_mixed, part_peak, part_mass), layer, batch, out)


def _join_parts(
    parts: tuple[Tensor, Tensor, Tensor], layer: _Layer, batch: DeviceAttentionBatch, out: Tensor
) -> None:
    """Add up the parts [S, Hq, max_parts, ...] of each decoded row, in their order."""
    sequences, num_heads, max_parts, head_dim = parts[0].shape
    kernels.join_parts_kernel[(sequences, num_heads)](
        *parts,
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
        enable_fp_fusion=True,
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
        float(layer.soft_cap or 0),
        layer.sliding_window or 0,
        GROUP=group,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        num_warps=tiles.num_warps,
        enable_fp_fusion=True,
        num_stages=tiles.num_stages,
        **layer.constants(),
    )
