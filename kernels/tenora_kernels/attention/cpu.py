"""Paged attention with torch's CPU products; README.md says why rows do not disturb each other.

One-query sequences are gathered into groups and computed head by head of the cache, with the
query heads of one KV head as the rows of one product. Longer chunks run one by one.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.attention.decode_group import DecodeGroup
from tenora_kernels.attention.prefill_chunk import PrefillChunk
from tenora_kernels.errors import ShapeError
from tenora_kernels.rope.cpu import apply_rope
from tenora_kernels.rope.rows import RopeRows


class _Layer(NamedTuple):
    """One layer's cache and the rules of its scores."""

    k_cache: Tensor
    v_cache: Tensor
    scale: float
    soft_cap: float | None


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store each token's key and value at its slot; see `reference.write_kv`.

    Mutates: k_cache and v_cache, at the given slots only.
    Raises:
        ShapeError: a cache that is not contiguous.
    """
    _slots(k_cache).index_copy_(1, slot_mapping, k.transpose(0, 1).to(k_cache.dtype))
    _slots(v_cache).index_copy_(1, slot_mapping, v.transpose(0, 1).to(v_cache.dtype))


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
    """Rotate q and k, store k and v; see `reference.rotate_and_store`."""
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
    """Return causal attention of each query over its own sequence; see `reference`.

    In float32 a sequence's rows do not depend on the other sequences of the batch, bit for bit.
    Raises:
        ShapeError: q does not match the batch or the cache, or a cache is not contiguous.
    """
    check_shapes(q, k_cache, v_cache, batch)
    plan = batch.plan(sliding_window)
    layer = _Layer(k_cache, v_cache, scale, soft_cap)
    out = torch.empty(q.shape, dtype=q.dtype)
    for group in plan.decode_groups:
        out.index_copy_(0, group.tokens, _decode(q, layer, group))
    for chunk in plan.prefill_chunks:
        out[chunk.rows] = _prefill(q[chunk.rows], layer, chunk)
    return out


def _decode(q: Tensor, layer: _Layer, group: DecodeGroup) -> Tensor:
    heads, head_dim = layer.k_cache.shape[0], q.shape[2]
    packed = q.index_select(0, group.tokens).view(group.num_rows, heads, -1, head_dim)
    packed = packed.transpose(0, 1).reshape(heads * group.num_rows, -1, head_dim)
    keys = group.gather(layer.k_cache, "keys").to(q.dtype).transpose(1, 2)
    mask = group.head_mask(heads, q.dtype)
    if layer.soft_cap is None:
        whole_mask = mask.expand(-1, packed.shape[1], -1)
        scores = torch.baddbmm(whole_mask, packed, keys, alpha=layer.scale)
    else:
        scores = _cap(torch.bmm(packed, keys).mul_(layer.scale), layer.soft_cap).add_(mask)
    weights = torch.softmax(scores, dim=-1)  # [Hkv * n, group, padded_len]
    mixed = _mix(weights, layer.v_cache, group)
    unpacked = mixed.view(heads, group.num_rows, -1, head_dim).transpose(0, 1)
    return unpacked.reshape(group.num_rows, -1, head_dim)


def _mix(weights: Tensor, v_cache: Tensor, group: DecodeGroup) -> Tensor:
    """The values of each query head under its weights: [Hkv * n * group, D], of weights' dtype."""
    if weights.dtype == torch.bfloat16 or v_cache.dtype != weights.dtype:
        return torch.bmm(weights, group.gather(v_cache, "values").to(weights.dtype))
    # a bag reads values where they lie and adds them in order of position, zeros at the end
    bags = group.bags(v_cache, weights.shape[1])
    pool = v_cache.view(-1, v_cache.shape[3])
    return F.embedding_bag(bags, pool, per_sample_weights=weights.view(bags.shape), mode="sum")


def _prefill(q: Tensor, layer: _Layer, chunk: PrefillChunk) -> Tensor:
    if layer.soft_cap is not None:
        return _prefill_capped(q, layer, chunk, layer.soft_cap)
    keys, values = (chunk.gather(cache).to(q.dtype) for cache in (layer.k_cache, layer.v_cache))
    mask = None if chunk.is_plain_causal else chunk.visible()
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),  # [1, Hq, queries, D]
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        scale=layer.scale,
        enable_gqa=True,
    )
    return mixed.squeeze(0).transpose(0, 1)


def _prefill_capped(q: Tensor, layer: _Layer, chunk: PrefillChunk, soft_cap: float) -> Tensor:
    keys, values = (chunk.gather(cache).to(q.dtype) for cache in (layer.k_cache, layer.v_cache))
    queries, _, head_dim = q.shape
    heads = keys.shape[0]
    packed = q.reshape(queries, heads, -1, head_dim).permute(1, 2, 0, 3)  # [Hkv, group, queries, D]
    packed = packed.reshape(heads, -1, head_dim)
    scores = _cap(torch.bmm(packed, keys.transpose(1, 2)).mul_(layer.scale), soft_cap)
    by_query = scores.view(heads, -1, queries, chunk.kv_len)
    by_query.masked_fill_(~chunk.visible(), float("-inf"))
    mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
    return mixed.view(heads, -1, queries, head_dim).permute(2, 0, 1, 3).reshape(q.shape)


def _cap(scores: Tensor, soft_cap: float) -> Tensor:
    return scores.div_(soft_cap).tanh_().mul_(soft_cap)


def _slots(cache: Tensor) -> Tensor:
    """The cache as [Hkv, num_slots, D], sharing memory."""
    if not cache.is_contiguous():
        raise ShapeError("a layer's KV cache is contiguous [Hkv, num_blocks, block_size, D]")
    return cache.view(cache.shape[0], -1, cache.shape[3])


def check_shapes(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch) -> None:
    """Raise ShapeError unless q fits the batch and both contiguous caches."""
    check_sizes(q, k_cache, v_cache, batch)
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ShapeError("a layer's KV cache is contiguous [Hkv, num_blocks, block_size, D]")


def check_sizes(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch) -> None:
    """Raise ShapeError unless q fits the batch and both caches, however they lie in memory."""
    if q.shape[0] != batch.num_tokens:
        raise ShapeError(f"q has {q.shape[0]} tokens, the batch has {batch.num_tokens}")
    heads, _, block_size, head_dim = k_cache.shape
    if k_cache.shape != v_cache.shape or block_size != batch.block_size:
        raise ShapeError(
            f"caches are {tuple(k_cache.shape)} and {tuple(v_cache.shape)}, "
            f"the batch has blocks of {batch.block_size}"
        )
    if q.shape[1] % heads or q.shape[2] != head_dim:
        raise ShapeError(f"q {tuple(q.shape)} does not fit a cache {tuple(k_cache.shape)}")
