"""The passes of a search over rows of probabilities: device code; `launch.py` says their order."""

import triton
import triton.language as tl

# A mass of 1.0. A float32 probability of 2^-37 and more is exact; sums stay below 2^61.
MASS_ONE = tl.constexpr(2.0**60)
# The first of three digits: ten bits hold the first three of the mantissa, for up to 1.0.
FIRST_SHIFT = tl.constexpr(20)


@triton.jit
def mass_of(p):
    """Return probabilities as integers; the product is exact."""
    return (p * MASS_ONE).to(tl.int64)


@triton.jit
def weights_of(
    logits,
    temperature,
    best,
    row,
    column,
    size,
    logits_stride,
    num_chunks,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Return e^((x - peak) / temperature) of a chunk, 0 beyond the row and where it is NaN."""
    chunk = tl.arange(0, BLOCK_CHUNKS)
    maxima = tl.load(best + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf"))
    peak = tl.max(maxima, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    values = tl.load(
        logits + row * logits_stride + column, mask=column < size, other=float("-inf")
    ).to(tl.float32)
    # as the reference, so that 0 / temperature is never NaN
    cold = tl.maximum(tl.load(temperature + row).to(tl.float32), 1e-12)
    weights = tl.exp((values - peak) / cold)
    return tl.where(weights > 0, weights, 0.0)


@triton.jit
def total_weight_kernel(
    logits,  # [N, size], rows logits_stride apart
    temperature,  # [N]
    best,  # float32 [N, num_chunks]
    total,  # int64 [N], starts at 0; a weight of 1.0 adds WEIGHT_ONE
    size,
    logits_stride,
    WEIGHT_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Add one chunk's weights to its row's."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    weights = weights_of(
        logits,
        temperature,
        best,
        row,
        column,
        size,
        logits_stride,
        tl.num_programs(1),
        BLOCK_CHUNKS,
    )
    mass = tl.sum((weights * WEIGHT_ONE).to(tl.int64), axis=0)
    tl.atomic_add(total + row, mass, sem="relaxed")


@triton.jit
def probability_kernel(
    logits,  # [N, size], rows logits_stride apart
    temperature,  # [N]
    best,  # float32 [N, num_chunks]
    total,  # int64 [N]
    probabilities,  # float32 [N, size]
    size,
    logits_stride,
    WEIGHT_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Write one chunk of the softmax."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    weights = weights_of(
        logits,
        temperature,
        best,
        row,
        column,
        size,
        logits_stride,
        tl.num_programs(1),
        BLOCK_CHUNKS,
    )
    whole = (tl.maximum(tl.load(total + row), 1).to(tl.float64) / WEIGHT_ONE).to(tl.float32)
    tl.store(probabilities + row * size + column, weights / whole, mask=column < size)


@triton.jit
def add_digits_kernel(
    probabilities,  # float32 [N, size]
    prefix,  # int32 [N], the digits found so far, read after the first
    masses,  # int64 [N, NUM_BINS], starts at 0
    counts,  # int64 [N, NUM_BINS], starts at 0, or None
    size,
    SHIFT: tl.constexpr,
    NUM_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the elements of one chunk that have the prefix to the bins of their next digit.

    The largest digit has the first bin.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    p = tl.load(probabilities + row * size + column, mask=column < size, other=0.0)
    bits = p.to(tl.int32, bitcast=True)
    is_member = column < size
    if SHIFT < FIRST_SHIFT:
        is_member = is_member & (bits // (NUM_BINS << SHIFT) == tl.load(prefix + row))
    to = row * NUM_BINS + (NUM_BINS - 1 - (bits >> SHIFT) % NUM_BINS)
    mass = mass_of(p)
    tl.atomic_add(masses + to, mass, mask=is_member & (mass > 0), sem="relaxed")
    if counts is not None:
        tl.atomic_add(counts + to, tl.full([BLOCK], 1, tl.int64), mask=is_member, sem="relaxed")


@triton.jit
def aim_at_cut_kernel(
    masses,  # int64 [N, NUM_BINS], of the first digit
    top_p,  # [N]
    within,  # int64 [N], the mass that top-k kept, or None for all
    target,  # int64 [N]
    NUM_BINS: tl.constexpr,
):
    """Write the mass that a row's cut must reach, at least its largest element's."""
    row = tl.program_id(0).to(tl.int64)
    share = tl.load(top_p + row).to(tl.float64)
    if within is None:
        limit = tl.sum(tl.load(masses + row * NUM_BINS + tl.arange(0, NUM_BINS)), axis=0)
        wanted = tl.ceil(share * MASS_ONE)
    else:
        limit = tl.load(within + row)
        wanted = tl.ceil(share * limit.to(tl.float64))
    # beyond the limit a product of floats would not fit an integer
    reached = tl.where(share < 1, tl.minimum(wanted, limit.to(tl.float64)), 1.0).to(tl.int64)
    reached = tl.where(share < 1, tl.minimum(reached, limit), limit)
    tl.store(target + row, tl.maximum(reached, 1))


@triton.jit
def aim_at_choice_kernel(
    uniform,  # float64 [N]
    kept,  # int64 [N], the mass of the cut
    target,  # int64 [N]
):
    """Write the least mass that exceeds uniform * kept."""
    row = tl.program_id(0)
    mass = tl.load(kept + row)
    reached = tl.floor(tl.load(uniform + row) * mass.to(tl.float64)).to(tl.int64) + 1
    tl.store(target + row, tl.maximum(tl.minimum(reached, mass), 1))


@triton.jit
def pick_digit_kernel(
    masses,  # int64 [N, NUM_BINS]
    counts,  # int64 [N, NUM_BINS], or None; what the target counts, where given
    target,  # int64 [N]
    prefix,  # int32 [N]
    mass_before,  # int64 [N], of all elements that precede those of the prefix
    count_before,  # int64 [N], where counts are given
    nth,  # int64 [N], written with the last digit: which of the equal elements, from 1
    kept,  # int64 [N], written with the last digit: the mass up to that element
    SHIFT: tl.constexpr,
    NUM_BINS: tl.constexpr,
):
    """Extend one row's prefix by the digit at which its target is reached."""
    row = tl.program_id(0).to(tl.int64)
    bins = tl.arange(0, NUM_BINS)  # [NUM_BINS]
    at = row * NUM_BINS + bins
    mass = tl.load(masses + at)
    found = tl.zeros([], tl.int32)
    mass_ahead = tl.zeros([], tl.int64)
    count_ahead = tl.zeros([], tl.int64)
    if SHIFT < FIRST_SHIFT:
        found = tl.load(prefix + row)
        mass_ahead = tl.load(mass_before + row)
        if counts is not None:
            count_ahead = tl.load(count_before + row)
    goal = tl.load(target + row)
    if counts is not None:
        count = tl.load(counts + at)
        is_below = count_ahead + tl.cumsum(count, axis=0) < goal
    else:
        count = tl.zeros([NUM_BINS], tl.int64)
        is_below = mass_ahead + tl.cumsum(mass, axis=0) < goal
    position = tl.minimum(tl.sum(is_below.to(tl.int32), axis=0), NUM_BINS - 1)
    found = found * NUM_BINS + (NUM_BINS - 1 - position)
    mass_ahead += tl.sum(tl.where(bins < position, mass, 0), axis=0)
    count_ahead += tl.sum(tl.where(bins < position, count, 0), axis=0)
    tl.store(prefix + row, found)
    tl.store(mass_before + row, mass_ahead)
    if counts is not None:
        tl.store(count_before + row, count_ahead)
    if SHIFT == 0:
        each = mass_of(found.to(tl.float32, bitcast=True))
        if counts is not None:
            order = goal - count_ahead
        else:
            order = tl.cdiv(goal - mass_ahead, tl.maximum(each, 1))
        tl.store(nth + row, order)
        tl.store(kept + row, mass_ahead + order * each)


@triton.jit
def count_equal_kernel(
    probabilities,  # float32 [N, size]
    prefix,  # int32 [N], all bits of the element found
    equal,  # int32 [N, num_chunks]
    size,
    BLOCK: tl.constexpr,
):
    """Count the elements of one chunk that equal the one found."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    p = tl.load(probabilities + row * size + column, mask=column < size, other=-1.0)
    is_equal = p.to(tl.int32, bitcast=True) == tl.load(prefix + row)
    tl.store(equal + row * tl.num_programs(1) + chunk, tl.sum(is_equal.to(tl.int32), axis=0))


@triton.jit
def locate_kernel(
    probabilities,  # float32 [N, size]
    prefix,  # int32 [N]
    equal,  # int32 [N, num_chunks]
    nth,  # int64 [N]
    choice,  # int64 [N]
    size,
    num_chunks,
    BLOCK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Write the index of the n-th element of one row that equals the one found."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, BLOCK_CHUNKS)  # [BLOCK_CHUNKS]
    counts = tl.load(equal + row * num_chunks + chunks, mask=chunks < num_chunks, other=0)
    order = tl.load(nth + row).to(tl.int32)
    chunk = tl.sum((tl.cumsum(counts, axis=0) < order).to(tl.int32), axis=0)
    chunk = tl.minimum(chunk, num_chunks - 1)
    order -= tl.sum(tl.where(chunks < chunk, counts, 0), axis=0)
    column = chunk * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    p = tl.load(probabilities + row * size + column, mask=column < size, other=-1.0)
    is_equal = p.to(tl.int32, bitcast=True) == tl.load(prefix + row)
    rank = tl.cumsum(is_equal.to(tl.int32), axis=0)
    index = tl.min(tl.where(is_equal & (rank == order), column, size - 1), axis=0)
    tl.store(choice + row, index.to(tl.int64))
