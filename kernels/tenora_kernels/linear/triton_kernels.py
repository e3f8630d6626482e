"""Device code of the deterministic product; launched by `triton_ops.py`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens", "num_splits"])
def linear_kernel(
    x_ptr,  # [T, in], rows x_stride apart
    weight_ptr,  # [out, in], rows contiguous
    bias_ptr,  # [out] or None
    y_ptr,  # [planes, T, out], rows y_stride apart
    num_tokens,
    out_features,
    in_features,
    x_stride,
    y_stride,
    num_splits,  # partial sums of one program, added in order
    SPLIT_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """y[p, t, o] = sum of x[t, i] * weight[o, i] over the inputs i of plane p, and bias[o]."""
    pid = tl.program_id(0)
    plane = tl.program_id(1)
    tiles_m = tl.cdiv(num_tokens, BLOCK_M)
    tiles_n = tl.cdiv(out_features, BLOCK_N)
    # GROUP_M row tiles share a column tile's weights while these are in the cache
    group = pid // (GROUP_M * tiles_n)
    first = group * GROUP_M
    size = tl.minimum(tiles_m - first, GROUP_M)
    tile_m = first + (pid % (GROUP_M * tiles_n)) % size
    tile_n = (pid % (GROUP_M * tiles_n)) // size
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    has_row = rows < num_tokens
    has_column = columns < out_features
    inner = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + rows[:, None] * x_stride
    weight_columns = weight_ptr + columns[None, :] * in_features
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in range(plane * num_splits, (plane + 1) * num_splits):
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        end = tl.minimum((split + 1) * SPLIT_SIZE, in_features)
        for start in range(split * SPLIT_SIZE, end, BLOCK_K):
            k = start + inner
            has_k = k < end
            x = tl.load(
                x_rows + k[None, :], mask=has_row[:, None] & has_k[None, :], other=0.0
            )  # [BLOCK_M, BLOCK_K]
            weight = tl.load(
                weight_columns + k[:, None], mask=has_column[None, :] & has_k[:, None], other=0.0
            )  # [BLOCK_K, BLOCK_N]
            acc = tl.dot(x, weight, acc, input_precision="ieee")
        total += acc
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns, mask=has_column, other=0.0)
        total += bias.to(tl.float32)[None, :]
    tl.store(
        y_ptr + (plane.to(tl.int64) * num_tokens + rows)[:, None] * y_stride + columns[None, :],
        total.to(y_ptr.dtype.element_ty),
        mask=has_row[:, None] & has_column[None, :],
    )


@triton.jit(do_not_specialize=["num_tokens"])
def add_planes_kernel(
    planes_ptr,  # float32 [num_planes, T, out]
    bias_ptr,  # [out] or None
    y_ptr,  # [T, out]
    num_tokens,
    out_features,
    num_planes,
    BLOCK_N: tl.constexpr,
):
    """y[t, o] = the sum of planes[p, t, o] in the order of p, and bias[o]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    has_column = columns < out_features
    total = tl.zeros((BLOCK_N,), tl.float32)
    for plane in range(num_planes):
        place = planes_ptr + (plane * num_tokens + row) * out_features + columns
        total += tl.load(place, mask=has_column, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + columns, mask=has_column, other=0.0).to(tl.float32)
    y_place = y_ptr + row * out_features + columns
    tl.store(y_place, total.to(y_ptr.dtype.element_ty), mask=has_column)
