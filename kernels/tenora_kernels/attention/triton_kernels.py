"""Paged attention on a GPU: device code only; `triton_ops.py` launches it.

Rows of a tile are queries times the query heads of one KV head, so that a KV head is read once
for its whole group. Scores and sums are float32, in powers of two. The order of every sum is a
function of positions alone: tiles begin at multiples of BLOCK_N, parts at multiples of SPLIT.
"""

import triton
import triton.language as tl

from tenora_kernels.attention.cache_write.triton_kernels import from_e4m3, in_head

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def read_tile(
    cache,
    table,  # the sequence's row of block_tables
    first_row,  # of the KV head, int64
    position,  # [BLOCK_N]
    is_read,  # [BLOCK_N]; what is not read is zero, whatever lies there
    dtype: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    """Return keys or values of one KV head: [BLOCK_N, BLOCK_D]."""
    dim = tl.arange(0, BLOCK_D)
    block = tl.load(table + position // BLOCK_SIZE, mask=is_read, other=0).to(tl.int64)
    row = first_row + block * BLOCK_SIZE + position % BLOCK_SIZE  # [BLOCK_N]
    tile = tl.load(
        cache + row[:, None] * HEAD_DIM + dim[None, :],
        mask=in_head(is_read, HEAD_DIM, BLOCK_D),
        other=0,
    )
    if IS_FP8:
        return from_e4m3(tile).to(dtype)
    return tile.to(dtype)


@triton.jit
def absorb(
    queries,  # [BLOCK_M, BLOCK_D]
    keys,  # [BLOCK_N, BLOCK_D]
    values,  # [BLOCK_N, BLOCK_D]
    visible,  # [BLOCK_M, BLOCK_N]
    peak,  # [BLOCK_M], largest score so far, times log2(e)
    mass,  # [BLOCK_M], sum of weights relative to the peak
    mixed,  # [BLOCK_M, BLOCK_D], weighted sum of values
    scale,
    soft_cap,
    HAS_CAP: tl.constexpr,
):
    """Return (peak, mass, mixed) with one more tile of keys, by online softmax."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    if HAS_CAP:
        # |tanh(s)| = (1 - t) / (1 + t), t = e^(-2 |s|), which never overflows
        t = tl.exp2(tl.abs(scores / soft_cap) * (-2.0 * LOG2E))
        capped = soft_cap * (1.0 - t) / (1.0 + t)
        scores = tl.where(scores < 0, -capped, capped)
    scores = tl.where(visible, scores * LOG2E, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    # a row that has seen nothing yet has weights 2^-inf, not 2^(inf - inf)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(peak - base)
    mixed = mixed * kept[:, None]
    mixed = tl.dot(weights.to(values.dtype), values, acc=mixed, input_precision="ieee")
    return new_peak, mass * kept + tl.sum(weights, axis=1), mixed


@triton.jit
def parts_of(
    seq_len, window, HAS_WINDOW: tl.constexpr, SPLIT: tl.constexpr, MAX_PARTS: tl.constexpr
):
    """Return (first visible position, where parts begin, positions per part, number of parts).

    A part is SPLIT positions, or the least multiple of it that needs no more than MAX_PARTS.
    """
    first = seq_len * 0
    if HAS_WINDOW:
        first = tl.maximum(seq_len - window, 0)
    base = first // SPLIT * SPLIT
    span = tl.maximum(seq_len - base, 1)
    part_len = tl.cdiv(tl.cdiv(span, SPLIT), MAX_PARTS) * SPLIT
    return first, base, part_len, tl.cdiv(span, part_len)


@triton.jit(do_not_specialize=["table_stride", "max_parts", "window"])
def decode_kernel(
    q,  # [T, Hq, HEAD_DIM], strided by token and head
    k_cache,  # [Hkv, num_slots, HEAD_DIM] contiguous
    v_cache,
    k_scale,  # float32 [Hkv] or [1], read for fp8 only
    v_scale,
    block_tables,  # int32 [S, max_blocks]
    seq_lens,
    cu_query_lens,
    out,  # [T, Hq, HEAD_DIM] contiguous
    part_mixed,  # float32 [S, Hq, max_parts, HEAD_DIM]
    part_peak,  # float32 [S, Hq, max_parts]
    part_mass,
    q_stride_token,
    q_stride_head,
    table_stride,
    num_slots,
    max_parts,
    scale,
    soft_cap,
    window,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_FP8: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One part of one sequence's positions, for one KV head and its group of query heads.

    A sequence of one part is finished here; others leave a partial sum per part.
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    token = tl.load(cu_query_lens + seq).to(tl.int64)
    if tl.load(cu_query_lens + seq + 1) - token != 1:
        return
    seq_len = tl.load(seq_lens + seq)
    first, base, part_len, num_parts = parts_of(seq_len, window, HAS_WINDOW, SPLIT, MAX_PARTS)
    start = base + part * part_len
    end = tl.minimum(start + part_len, seq_len)
    if start >= end:
        return
    row = tl.arange(0, BLOCK_M)  # [BLOCK_M], query heads of the group
    dim = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    head = kv_head * GROUP + row
    is_live = in_head(row < GROUP, HEAD_DIM, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    queries = tl.load(
        q + token * q_stride_token + head[:, None] * q_stride_head + dim[None, :],
        mask=is_live,
        other=0.0,
    )
    value_scale = 1.0
    if IS_FP8:
        scale = scale * (256.0 * tl.load(k_scale + kv_head * SCALE_STRIDE))
        value_scale = 256.0 * tl.load(v_scale + kv_head * SCALE_STRIDE)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = block_tables + seq * table_stride
    first_row = kv_head * num_slots
    for tile in range(tl.maximum(start, first) // BLOCK_N * BLOCK_N, end, BLOCK_N):
        position = tile + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        is_seen = (position >= first) & (position < end)
        keys = read_tile(
            k_cache, table, first_row, position, is_seen,
            q.dtype.element_ty, HEAD_DIM, BLOCK_SIZE, BLOCK_D, IS_FP8,
        )  # fmt: skip
        values = read_tile(
            v_cache, table, first_row, position, is_seen,
            q.dtype.element_ty, HEAD_DIM, BLOCK_SIZE, BLOCK_D, IS_FP8,
        )  # fmt: skip
        peak, mass, mixed = absorb(
            queries, keys, values, is_seen[None, :], peak, mass, mixed, scale, soft_cap, HAS_CAP
        )
    mixed = mixed * value_scale
    num_heads = tl.num_programs(1) * GROUP
    if num_parts == 1:
        to = out + (token * num_heads + head[:, None]) * HEAD_DIM + dim[None, :]
        tl.store(to, (mixed / mass[:, None]).to(out.dtype.element_ty), mask=is_live)
    else:
        at = (seq * num_heads + head) * max_parts + part  # [BLOCK_M]
        tl.store(part_mixed + at[:, None] * HEAD_DIM + dim[None, :], mixed, mask=is_live)
        tl.store(part_peak + at, peak, mask=row < GROUP)
        tl.store(part_mass + at, mass, mask=row < GROUP)


@triton.jit(do_not_specialize=["max_parts", "window"])
def join_parts_kernel(
    part_mixed,  # float32 [S, Hq, max_parts, HEAD_DIM]
    part_peak,  # float32 [S, Hq, max_parts]
    part_mass,
    seq_lens,
    cu_query_lens,
    out,  # [T, Hq, HEAD_DIM] contiguous
    max_parts,
    window,
    HEAD_DIM: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One query head of one sequence: its parts, added in one order whatever `max_parts` is."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    token = tl.load(cu_query_lens + seq).to(tl.int64)
    if tl.load(cu_query_lens + seq + 1) - token != 1:
        return
    seq_len = tl.load(seq_lens + seq)
    _, _, _, num_parts = parts_of(seq_len, window, HAS_WINDOW, SPLIT, MAX_PARTS)
    if num_parts == 1:
        return
    part = tl.arange(0, MAX_PARTS)  # [MAX_PARTS]
    dim = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    is_part = part < num_parts
    at = (seq * tl.num_programs(1) + head) * max_parts + part
    peak = tl.load(part_peak + at, mask=is_part, other=float("-inf"))
    mass = tl.load(part_mass + at, mask=is_part, other=0.0)
    mixed = tl.load(
        part_mixed + at[:, None] * HEAD_DIM + dim[None, :],
        mask=in_head(is_part, HEAD_DIM, BLOCK_D),
        other=0.0,
    )  # [MAX_PARTS, BLOCK_D]
    weight = tl.exp2(peak - tl.max(peak, axis=0))
    whole = tl.sum(mixed * weight[:, None], axis=0) / tl.sum(mass * weight, axis=0)
    to = out + (token * tl.num_programs(1) + head) * HEAD_DIM + dim
    tl.store(to, whole.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


@triton.jit(do_not_specialize=["table_stride", "num_sequences", "window"])
def prefill_kernel(
    q,  # [T, Hq, HEAD_DIM], strided by token and head
    k_cache,  # [Hkv, num_slots, HEAD_DIM] contiguous
    v_cache,
    k_scale,  # float32 [Hkv] or [1], read for fp8 only
    v_scale,
    block_tables,  # int32 [S, max_blocks]
    seq_lens,
    cu_query_lens,
    out,  # [T, Hq, HEAD_DIM] contiguous
    q_stride_token,
    q_stride_head,
    table_stride,
    num_slots,
    num_sequences,
    scale,
    soft_cap,
    window,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """BLOCK_M // GROUP queries of one sequence, for one KV head and its group of query heads."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    seq = sequence_of(tile, cu_query_lens, num_sequences, BLOCK_Q)
    token = tl.load(cu_query_lens + seq)
    query_len = tl.load(cu_query_lens + seq + 1) - token
    first_query = (tile - token // BLOCK_Q - seq) * BLOCK_Q
    if (query_len <= 1) | (first_query >= query_len):
        return
    seq_len = tl.load(seq_lens + seq)
    row = tl.arange(0, BLOCK_M)  # [BLOCK_M], query by query, the heads of the group inside
    dim = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    query = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row < BLOCK_Q * GROUP) & (query < query_len)
    is_live = in_head(is_row, HEAD_DIM, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    row_token = (token + query).to(tl.int64)
    queries = tl.load(
        q + row_token[:, None] * q_stride_token + head[:, None] * q_stride_head + dim[None, :],
        mask=is_live,
        other=0.0,
    )
    value_scale = 1.0
    if IS_FP8:
        scale = scale * (256.0 * tl.load(k_scale + kv_head * SCALE_STRIDE))
        value_scale = 256.0 * tl.load(v_scale + kv_head * SCALE_STRIDE)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = block_tables + seq.to(tl.int64) * table_stride
    first_row = kv_head * num_slots
    own = seq_len - query_len + query  # [BLOCK_M], position of each query
    start = seq_len * 0
    if HAS_WINDOW:
        start = tl.maximum(seq_len - query_len + first_query - window + 1, 0)
    end = seq_len - query_len + tl.minimum(first_query + BLOCK_Q, query_len)
    for key_tile in range(start // BLOCK_N * BLOCK_N, end, BLOCK_N):
        position = key_tile + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        is_read = (position >= start) & (position < end)
        visible = is_read[None, :] & (position[None, :] <= own[:, None])
        if HAS_WINDOW:
            visible = visible & (position[None, :] > own[:, None] - window)
        keys = read_tile(
            k_cache, table, first_row, position, is_read,
            q.dtype.element_ty, HEAD_DIM, BLOCK_SIZE, BLOCK_D, IS_FP8,
        )  # fmt: skip
        values = read_tile(
            v_cache, table, first_row, position, is_read,
            q.dtype.element_ty, HEAD_DIM, BLOCK_SIZE, BLOCK_D, IS_FP8,
        )  # fmt: skip
        peak, mass, mixed = absorb(
            queries, keys, values, visible, peak, mass, mixed, scale, soft_cap, HAS_CAP
        )
    to = row_token[:, None] * (tl.num_programs(1) * GROUP) + head[:, None]
    # a row of no query may have seen nothing
    whole = mixed * value_scale / tl.where(is_row, mass, 1.0)[:, None]
    tl.store(out + to * HEAD_DIM + dim[None, :], whole.to(out.dtype.element_ty), mask=is_live)


@triton.jit
def sequence_of(tile, cu_query_lens, num_sequences, BLOCK_Q: tl.constexpr):
    """Return which sequence owns a tile: sequence s begins at tile cu[s] // BLOCK_Q + s."""
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_query_lens + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1
