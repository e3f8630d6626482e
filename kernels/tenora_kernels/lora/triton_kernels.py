"""Device code of batched LoRA: plan, shrink, expand. Launched by `device_plan` and `triton_ops`.

A tile is up to TILE_ROWS rows of one adapter, so no product ever mixes adapters. Loads outside of
a rank, a tile or a matrix are masked, never multiplied by zero: NaN stays in its row and adapter.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens", "num_adapters", "num_tiles"])
def plan_kernel(
    token_adapter_ptr,  # int32 [T]
    rows_ptr,  # int32 [T]
    tiles_ptr,  # int32 [num_tiles, 3]: adapter, first place in rows, count
    num_tokens,
    num_adapters,
    num_tiles,
    TILE_ROWS: tl.constexpr,
    BINS: tl.constexpr,  # a power of two above num_adapters
    BLOCK: tl.constexpr,
):
    """Group rows by adapter in stable order: one program for each adapter, one for the rest.

    Every program counts all rows, so none waits for another and nothing is added atomically.
    """
    own = tl.program_id(0)
    bins = tl.arange(0, BINS)
    lanes = tl.arange(0, BLOCK)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, num_tokens, BLOCK):
        token = start + lanes
        adapter = tl.load(token_adapter_ptr + token, mask=token < num_tokens, other=-1)
        is_known = (adapter >= 0) & (adapter < num_adapters)
        counts += tl.histogram(tl.where(is_known, adapter, num_adapters), BINS)
    counts = tl.where(bins < num_adapters, counts, 0)
    needed = (counts + TILE_ROWS - 1) // TILE_ROWS
    first_row = tl.sum(tl.where(bins < own, counts, 0), axis=0)
    first_tile = tl.sum(tl.where(bins < own, needed, 0), axis=0)
    count = tl.sum(tl.where(bins == own, counts, 0), axis=0)

    if own == num_adapters:
        # first_tile is the number of tiles in use here: the others become empty
        for start in range(first_tile, num_tiles, BLOCK):
            tile = start + lanes
            tl.store(tiles_ptr + tile * 3 + 2, 0, mask=tile < num_tiles)
    elif count > 0:
        placed = first_row
        for start in range(0, num_tokens, BLOCK):
            token = start + lanes
            adapter = tl.load(token_adapter_ptr + token, mask=token < num_tokens, other=-1)
            is_own = (adapter == own).to(tl.int32)
            place = placed + tl.cumsum(is_own, axis=0) - 1
            tl.store(rows_ptr + place, token, mask=is_own > 0)
            placed += tl.sum(is_own, axis=0)
        for start in range(0, count, BLOCK * TILE_ROWS):
            done = start + lanes * TILE_ROWS
            entry = tiles_ptr + (first_tile + done // TILE_ROWS) * 3
            tl.store(entry, own, mask=done < count)
            tl.store(entry + 1, first_row + done, mask=done < count)
            tl.store(entry + 2, tl.minimum(count - done, TILE_ROWS), mask=done < count)


@triton.jit(do_not_specialize=["num_tokens", "num_splits"])
def shrink_kernel(
    x_ptr,  # [T, in], rows x_stride apart
    lora_a_ptr,  # [slices * capacity_ranks, in]
    table_ptr,  # int32 [num_adapters, slices, table_columns]: rank, scaling, pages
    rows_ptr,
    tiles_ptr,
    sums_ptr,  # float32 [planes, slices, T, sums_stride], whole blocks of BLOCK_R ranks
    num_tokens,
    num_splits,  # partial sums of one program, added in order
    in_features,
    x_stride,
    capacity_ranks,
    table_columns,
    sums_stride,
    SPLIT_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
):
    """sums[p, s, t, r] = sum of x[t, i] * A_s[r, i] over the inputs i of plane p."""
    tile = tl.program_id(0)
    position = tl.program_id(1)
    plane = tl.program_id(2)
    adapter = tl.load(tiles_ptr + tile * 3)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    count = tl.load(tiles_ptr + tile * 3 + 2)
    if count == 0:
        return
    num_slices = tl.num_programs(1)
    entry = table_ptr + (adapter.to(tl.int64) * num_slices + position) * table_columns
    rank = tl.load(entry)
    lanes = tl.arange(0, TILE_ROWS)
    has_row = lanes < count
    rows = tl.load(rows_ptr + first + lanes, mask=has_row, other=0).to(tl.int64)
    x_rows = x_ptr + rows[:, None] * x_stride
    sums_rows = (plane.to(tl.int64) * num_slices + position) * num_tokens + rows
    inner = tl.arange(0, BLOCK_K)
    for first_rank in range(0, rank, BLOCK_R):
        ranks = first_rank + tl.arange(0, BLOCK_R)
        has_rank = ranks < rank
        page = tl.load(entry + 2 + ranks // PAGE_ROWS, mask=has_rank, other=0).to(tl.int64)
        a_rows = position.to(tl.int64) * capacity_ranks + page * PAGE_ROWS + ranks % PAGE_ROWS
        a_columns = lora_a_ptr + a_rows[None, :] * in_features
        total = tl.zeros((TILE_ROWS, BLOCK_R), tl.float32)
        for split in range(plane * num_splits, (plane + 1) * num_splits):
            acc = tl.zeros((TILE_ROWS, BLOCK_R), tl.float32)
            end = tl.minimum((split + 1) * SPLIT_SIZE, in_features)
            for start in range(split * SPLIT_SIZE, end, BLOCK_K):
                k = start + inner
                has_k = k < end
                x = tl.load(
                    x_rows + k[None, :], mask=has_row[:, None] & has_k[None, :], other=0.0
                )  # [TILE_ROWS, BLOCK_K]
                a = tl.load(
                    a_columns + k[:, None], mask=has_rank[None, :] & has_k[:, None], other=0.0
                )  # [BLOCK_K, BLOCK_R]
                acc = tl.dot(x, a, acc, input_precision="ieee")
            total += acc
        tl.store(
            sums_ptr + sums_rows[:, None] * sums_stride + ranks[None, :],
            total,
            mask=has_row[:, None],
        )


@triton.jit(do_not_specialize=["num_tokens"])
def expand_kernel(
    y_ptr,  # [T, out], rows y_stride apart
    sums_ptr,  # float32 [NUM_PLANES, slices, T, sums_stride]
    lora_b_ptr,  # per slice [capacity_ranks, out_s]
    table_ptr,  # int32 [num_adapters, slices, table_columns]: rank, scaling, pages
    rows_ptr,
    tiles_ptr,
    out_tiles_ptr,  # int64 [.., 4]: slice, first column of y, columns left, place in lora_b
    slice_sizes_ptr,  # int64 [slices]
    out_scale_ptr,  # float32 [num_adapters, out] or None
    out_bias_ptr,  # float32 [num_adapters, out] or None
    num_tokens,
    num_slices,
    out_features,
    y_stride,
    table_columns,
    sums_stride,
    NUM_PLANES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,  # divides every slice size, so that loads may be wide
):
    """y[t, o] = out_scale[o] * (y[t, o] + scaling * sum_r sums[t, r] * B[r, o]) + out_bias[o]."""
    tile = tl.program_id(0)
    out_tile = out_tiles_ptr + tl.program_id(1) * 4
    adapter = tl.load(tiles_ptr + tile * 3).to(tl.int64)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    count = tl.load(tiles_ptr + tile * 3 + 2)
    if count == 0:
        return
    position = tl.load(out_tile)
    entry = table_ptr + (adapter * num_slices + position) * table_columns
    rank = tl.load(entry)
    if rank == 0:
        return
    scaling = tl.load(entry + 1).to(tl.float32, bitcast=True)
    first_column = tl.multiple_of(tl.load(out_tile + 1), ALIGNED)
    columns_left = tl.multiple_of(tl.load(out_tile + 2), ALIGNED)
    b_start = tl.multiple_of(tl.load(out_tile + 3), ALIGNED)
    slice_size = tl.multiple_of(tl.load(slice_sizes_ptr + position), ALIGNED)
    lanes = tl.arange(0, TILE_ROWS)
    columns = tl.arange(0, BLOCK_N)
    has_row = lanes < count
    has_column = columns < columns_left
    b_columns = lora_b_ptr + b_start + columns[None, :]
    rows = tl.load(rows_ptr + first + lanes, mask=has_row, other=0).to(tl.int64)
    sums_rows = sums_ptr + (position * num_tokens + rows)[:, None] * sums_stride
    plane_size = num_tokens.to(tl.int64) * num_slices * sums_stride
    acc = tl.zeros((TILE_ROWS, BLOCK_N), tl.float32)
    for first_rank in range(0, rank, BLOCK_R):
        ranks = first_rank + tl.arange(0, BLOCK_R)
        has_rank = ranks < rank
        page = tl.load(entry + 2 + ranks // PAGE_ROWS, mask=has_rank, other=0).to(tl.int64)
        b_rows = page * PAGE_ROWS + ranks % PAGE_ROWS
        b = tl.load(
            b_columns + b_rows[:, None] * slice_size,
            mask=has_rank[:, None] & has_column[None, :],
            other=0.0,
        )  # [BLOCK_R, BLOCK_N]
        sums = tl.zeros((TILE_ROWS, BLOCK_R), tl.float32)
        part = sums_rows + ranks[None, :]
        for _ in tl.static_range(NUM_PLANES):
            sums += tl.load(part, mask=has_row[:, None], other=0.0)
            part += plane_size
        sums *= scaling
        # two products keep twice the bits of the sums that the weights' dtype has
        high = sums.to(b.dtype)
        acc = tl.dot(high, b, acc, input_precision="ieee")
        if b.dtype != tl.float32:
            acc = tl.dot((sums - high.to(tl.float32)).to(b.dtype), b, acc)
    out_columns = first_column + columns
    y_tile = y_ptr + rows[:, None] * y_stride + out_columns[None, :]
    mask = has_row[:, None] & has_column[None, :]
    y = tl.load(y_tile, mask=mask, other=0.0).to(tl.float32) + acc
    if out_scale_ptr is not None:
        scale_row = out_scale_ptr + adapter * out_features + out_columns
        y *= tl.load(scale_row, mask=has_column, other=1.0)[None, :]
    if out_bias_ptr is not None:
        bias_row = out_bias_ptr + adapter * out_features + out_columns
        y += tl.load(bias_row, mask=has_column, other=0.0)[None, :]
    tl.store(y_tile, y.to(y_ptr.dtype.element_ty), mask=mask)
