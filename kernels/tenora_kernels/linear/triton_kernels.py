"""Device code of the deterministic product; launched by `triton_ops.py`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens"])
def linear_kernel(
    x_ptr,  # [T, in], rows x_stride apart
    weight_ptr,  # [out, in], rows contiguous
    bias_ptr,  # [out] or None
    y_ptr,  # [T, out], rows y_stride apart
    num_tokens,
    out_features,
    in_features,
    x_stride,
    y_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """y[t, o] = sum_i x[t, i] * weight[o, i] + bias[o], terms in blocks of i in plain order."""
    pid = tl.program_id(0)
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
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, in_features, BLOCK_K):
        has_inner = start + inner < in_features
        x = tl.load(
            x_ptr + rows[:, None] * x_stride + (start + inner)[None, :],
            mask=has_row[:, None] & has_inner[None, :],
            other=0.0,
        )  # [BLOCK_M, BLOCK_K]
        weight = tl.load(
            weight_ptr + columns[None, :] * in_features + (start + inner)[:, None],
            mask=has_column[None, :] & has_inner[:, None],
            other=0.0,
        )  # [BLOCK_K, BLOCK_N]
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns, mask=has_column, other=0.0)
        acc += bias.to(tl.float32)[None, :]
    tl.store(
        y_ptr + rows[:, None] * y_stride + columns[None, :],
        acc.to(y_ptr.dtype.element_ty),
        mask=has_row[:, None] & has_column[None, :],
    )
