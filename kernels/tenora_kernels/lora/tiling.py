"""How a step's rows are cut for the GPU: a small table by rows, rank and shape, not a tuner.

Not yet measured: chosen from bytes and from the registers of the compile table.
"""

from dataclasses import dataclass

import torch

# tensor cores take 16 rows at once; a tile never mixes adapters
TILE_ROWS = 16
# rows up to which a shrink is split into planes that run side by side and the expand sums
MAX_SPLIT_TOKENS = 256
FEW_TOKENS = 16
LARGE_TILE_TOKENS = 4096
# output columns of a tile; a pool keeps a list of its tiles for each
BLOCK_COLUMNS = (64, 128)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of one step's rows.

    Each sum over the inputs is cut into splits of fixed size, added in order. Split, the parts
    are computed side by side, one plane each, and the expand adds them; otherwise one program
    adds them itself. Both give the same bits.
    """

    tile_rows: int
    block_n: int
    is_split: bool
    num_warps: int


def tiling_of(num_tokens: int, *, is_batch_invariant: bool) -> Tiling:
    """Return the tiles for a step of `num_tokens` rows.

    Batch invariant, every tile has 16 rows, so that one instruction adds a row's terms in one
    order however many rows there are. Otherwise prefill takes large tiles, whose instructions
    may add in another order.
    """
    if num_tokens <= FEW_TOKENS:
        # one tile for each adapter; narrow columns give the few tiles enough programs
        return Tiling(TILE_ROWS, 64, is_split=True, num_warps=2)
    if num_tokens <= MAX_SPLIT_TOKENS:
        return Tiling(TILE_ROWS, 128, is_split=True, num_warps=4)
    if is_batch_invariant:
        return Tiling(TILE_ROWS, 128, is_split=False, num_warps=4)
    if num_tokens <= LARGE_TILE_TOKENS:
        return Tiling(64, 64, is_split=False, num_warps=4)
    return Tiling(128, 64, is_split=False, num_warps=8)


def max_tiles(num_tokens: int, num_adapters: int, tile_rows: int) -> int:
    """The most tiles that `num_tokens` rows of any adapters can need."""
    adapters = min(num_adapters, num_tokens)
    return (num_tokens + (tile_rows - 1) * adapters) // tile_rows


def block_rank(max_rank: int) -> int:
    """Ranks of one product; fixed for a pool, because the expand adds block after block."""
    return 16 if max_rank <= 16 else 32


def sums_stride(max_rank: int) -> int:
    """Rank sums of one row: whole blocks, which are stored and read without a mask."""
    block = block_rank(max_rank)
    return -(-max_rank // block) * block


def split_size(in_features: int) -> int:
    """Inputs of one partial sum; fixed by the shape alone."""
    return 512 if in_features <= 8192 else 1024


def num_planes(in_features: int, *, is_split: bool) -> int:
    """Partial sums that the expand adds."""
    return -(-in_features // split_size(in_features)) if is_split else 1


def block_inputs(dtype: torch.dtype, tile_rows: int) -> int:
    """Inputs of one product of the shrink; large tiles take fewer, to fit in shared memory."""
    if dtype == torch.float32:
        return 32
    return 128 if tile_rows == TILE_ROWS else 64


def expand_stages(tile_rows: int) -> int:
    """Blocks of ranks under way at once: one for the products of whole warp groups.

    There a cast in front of a pipelined product was miscompiled for sm_90 (triton issue 9433).
    """
    return 2 if tile_rows == TILE_ROWS else 1
