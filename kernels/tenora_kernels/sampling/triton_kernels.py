"""Choosing tokens on a GPU, row by row: device code only; `triton_ops.py` launches it.

Inverting a cut distribution is in `inversion/`.
"""

import triton
import triton.language as tl


@triton.jit
def chunk_best_kernel(
    logits,  # [N, size], rows logits_stride apart
    best,  # float32 [N, num_chunks]
    best_index,  # int32 [N, num_chunks], lowest of the best
    size,
    logits_stride,
    BLOCK: tl.constexpr,
):
    """The largest of one chunk of one row, and where it is first; NaN counts as -infinity."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    values = tl.load(
        logits + row * logits_stride + column, mask=column < size, other=float("-inf")
    ).to(tl.float32)
    is_number = values == values  # noqa: PLR0124 - false of NaN alone
    values = tl.where(is_number, values, float("-inf"))
    largest = tl.max(values, axis=0)
    first = tl.min(tl.where(values == largest, column, size - 1), axis=0)
    to = row * tl.num_programs(1) + chunk
    tl.store(best + to, largest)
    tl.store(best_index + to, first)


@triton.jit
def row_best_kernel(
    best,  # float32 [N, num_chunks]
    best_index,  # int32 [N, num_chunks]
    choice,  # int64 [N]
    num_chunks,
    BLOCK_CHUNKS: tl.constexpr,
):
    """The largest of one row's chunks, the lowest index among equals."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, BLOCK_CHUNKS)  # [BLOCK_CHUNKS]
    has_chunk = chunk < num_chunks
    at = row * num_chunks + chunk
    values = tl.load(best + at, mask=has_chunk, other=float("-inf"))
    index = tl.load(best_index + at, mask=has_chunk, other=2147483647)
    largest = tl.max(values, axis=0)
    first = tl.min(tl.where(values == largest, index, 2147483647), axis=0)
    tl.store(choice + row, first.to(tl.int64))


@triton.jit
def finite_chunk_kernel(
    logits,  # [N, size], rows logits_stride apart
    is_finite,  # int8 [N], holds 1
    size,
    logits_stride,
    BLOCK: tl.constexpr,
):
    """Write 0 where a chunk holds NaN or infinity; programs that write all write the same."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    values = tl.load(logits + row * logits_stride + column, mask=column < size, other=0.0)
    is_broken = (tl.abs(values.to(tl.float32)) < float("inf")) == 0
    tl.store(is_finite + row, 0, mask=tl.max(is_broken.to(tl.int32), axis=0) > 0)


@triton.jit(do_not_specialize=["num_rows"])
def uniform_kernel(
    seeds,  # int64 [N]
    positions,  # int64 [N]
    numbers,  # float64 [N]
    num_rows,
    BLOCK: tl.constexpr,
):
    """SplitMix64's finaliser of the seed, and of that plus the position times the golden gamma."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    has_row = row < num_rows
    seed = tl.load(seeds + row, mask=has_row, other=0).to(tl.uint64)
    position = tl.load(positions + row, mask=has_row, other=0).to(tl.uint64)
    gamma = tl.full([BLOCK], 0x9E3779B97F4A7C15, tl.uint64)
    bits = finalise(finalise(seed + gamma) + (position + 1) * gamma)
    tl.store(numbers + row, (bits >> 11).to(tl.float64) * (2.0**-53), mask=has_row)


@triton.jit
def finalise(z):
    """Return SplitMix64's mix of uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def penalise_kernel(
    logits,  # [N, size], rows logits_stride apart, written in place
    counts,  # int32 [R, size] contiguous: how often a row's output has each token
    in_prompt,  # uint8 [R, size] contiguous: whether its prompt has it
    state_rows,  # int64 [N]: which row of the state, negative for none
    repetition,  # float32 [N]
    presence,
    frequency,
    size,
    logits_stride,
    BLOCK: tl.constexpr,
):
    """One chunk of one row."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(state_rows + row)
    if state < 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    has_column = column < size
    at = logits + row * logits_stride + column
    values = tl.load(at, mask=has_column, other=0.0).to(tl.float32)
    count = tl.load(counts + state * size + column, mask=has_column, other=0)
    prompt = tl.load(in_prompt + state * size + column, mask=has_column, other=0)
    factor = tl.load(repetition + row)
    repeated = tl.where(values > 0, values / factor, values * factor)
    values = tl.where((count > 0) | (prompt != 0), repeated, values)
    values = values - tl.load(frequency + row) * count.to(tl.float32)
    values = values - tl.where(count > 0, tl.load(presence + row), 0.0)
    tl.store(at, values.to(logits.dtype.element_ty), mask=has_column)


@triton.jit
def count_kernel(
    counts,  # int32 [R, size] contiguous
    state_rows,  # int64 [N], negative for none
    tokens,  # int64 [N]
    size,
):
    """Count one row's token."""
    row = tl.program_id(0)
    state = tl.load(state_rows + row)
    if state >= 0:
        tl.atomic_add(counts + state * size + tl.load(tokens + row), 1, sem="relaxed")
