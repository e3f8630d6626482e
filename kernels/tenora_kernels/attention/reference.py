"""The specification of paged attention: one sequence and one head at a time."""

import torch
from torch import Tensor

from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.rope.reference import apply_rope
from tenora_kernels.rope.rows import RopeRows


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store each token's key and value at its slot.

    Semantics: cache[h, slot // block_size, slot % block_size] = k[t, h], slot = slot_mapping[t]
    Args: k, v [T, Hkv, D]; caches [Hkv, num_blocks, block_size, D]; slot_mapping [T] int64.
    Mutates: k_cache and v_cache, at the given slots only.
    """
    block_size = k_cache.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        k_cache[:, slot // block_size, slot % block_size] = k[token]
        v_cache[:, slot // block_size, slot % block_size] = v[token]


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
    """Rotate q and k by each token's position, and store k and v at each token's slot.

    Semantics: `apply_rope`, then `write_kv` of the rotated k.
    Args: q [T, Hq, D]; k, v [T, Hkv, D]; caches [Hkv, num_blocks, block_size, D];
    slot_mapping [T] int64.
    Mutates: the caches at the given slots; q and k may be used as scratch.
    Returns: the rotated q [T, Hq, D], maybe in the memory of q.
    """
    rotated_q, rotated_k = apply_rope(q, k, *rope.gathered)
    write_kv(rotated_k, v, k_cache, v_cache, slot_mapping)
    return rotated_q


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
    """Return causal attention of each query over its own sequence.

    Semantics: o[t, h] = sum_j softmax_j(cap(scale * q[t, h] . k[j, g])) v[j, g], where g is
    h's KV head, j runs over positions 0..p of the sequence, p being the query's own, limited to
    the last `sliding_window` of them; cap(s) = soft_cap * tanh(s / soft_cap), if given.
    Args: q [T, Hq, D]; caches [Hkv, num_blocks, block_size, D]; Hq is a multiple of Hkv.
    Returns: [T, Hq, D] of q's dtype.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // k_cache.shape[0]
    start = 0
    for query_len, seq_len, table in zip(
        batch.query_lens, batch.seq_lens, batch.block_tables, strict=True
    ):
        keys, values = (_read(cache, table, seq_len) for cache in (k_cache, v_cache))
        visible = _visible(query_len, seq_len, sliding_window)
        rows = slice(start, start + query_len)
        for head in range(q.shape[1]):
            scores = scale * (q[rows, head].to(keys.dtype) @ keys[head // group].T)
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
            out[rows, head] = (weights @ values[head // group]).to(q.dtype)
        start += query_len
    return out


def _read(cache: Tensor, table: tuple[int, ...], seq_len: int) -> Tensor:
    """One sequence's keys or values in order of position: [Hkv, seq_len, D], at least float32."""
    blocks = [cache[:, block] for block in table]
    joined = torch.cat(blocks, dim=1)[:, :seq_len]
    return joined.to(torch.promote_types(cache.dtype, torch.float32))


def _visible(query_len: int, seq_len: int, sliding_window: int | None) -> Tensor:
    """Which positions each query sees: bool [query_len, seq_len]."""
    query = torch.arange(seq_len - query_len, seq_len).unsqueeze(1)
    key = torch.arange(seq_len).unsqueeze(0)
    visible = key <= query
    if sliding_window is not None:
        visible &= key > query - sliding_window
    return visible
