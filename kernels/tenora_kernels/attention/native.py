"""Paged attention and the storing of keys and values in C++: float32 over a cache of float32 or
bfloat16, in any layout that keeps a head's part of a block together (`library.kv_cache`).

A row's bits depend on its own position, query and sequence alone: a decode step, a prefill chunk
and a whole prompt give the same ones.
"""

import ctypes

import torch
from torch import Tensor

from tenora_kernels.attention import cpu
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.native import library
from tenora_kernels.native.library import AttentionArgs, RopeArgs
from tenora_kernels.rope.rows import RopeRows


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Return causal attention of each query over its own sequence; see `reference`.

    Queries of another dtype than float32 run the torch twin.
    Raises:
        ShapeError: q does not match the batch or the cache, or a block's slots are scattered.
    """
    if q.dtype != torch.float32:
        return cpu.paged_attention(
            q,
            k_cache,
            v_cache,
            batch,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
        )
    cpu.check_sizes(q, k_cache, v_cache, batch)
    tokens, q_heads, head_dim = q.shape
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    out = torch.empty(tokens, q_heads, head_dim)
    starts, lens, blocks, table_starts = batch.flat
    args = AttentionArgs(
        q=q.data_ptr(),
        q_stride=q.stride(0),
        out=out.data_ptr(),
        cache=library.kv_cache(k_cache, v_cache),
        q_heads=q_heads,
        num_sequences=lens.shape[0],
        query_starts=starts.data_ptr(),
        seq_lens=lens.data_ptr(),
        blocks=blocks.data_ptr(),
        table_starts=table_starts.data_ptr(),
        scale=scale,
        soft_cap=soft_cap or 0.0,
        window=sliding_window or 0,
    )
    library.library().tn_attention(ctypes.addressof(args))
    return out


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: RopeRows,
    *,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Rotate q and k, store k and v; see `reference.rotate_and_store`.

    Returns: q, rotated in place where its heads are contiguous.
    """
    parts = (q, k, v)
    if any(x.dtype != torch.float32 for x in parts):
        return cpu.rotate_and_store(
            q, k, v, rope, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping
        )
    head_dim = q.shape[2]
    q, k, v = (x if x.stride(2) == 1 and x.stride(1) == head_dim else x.contiguous() for x in parts)
    args = RopeArgs(
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        q_stride=q.stride(0),
        k_stride=k.stride(0),
        v_stride=v.stride(0),
        q_heads=q.shape[1],
        cos=rope.cos.data_ptr(),
        sin=rope.sin.data_ptr(),
        positions=rope.positions.data_ptr(),
        slots=slot_mapping.data_ptr(),
        cache=library.kv_cache(k_cache, v_cache),
    )
    library.library().tn_rope_write_kv(ctypes.addressof(args), q.shape[0])
    return q
