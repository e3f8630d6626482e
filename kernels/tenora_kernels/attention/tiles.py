"""Tile shapes of the device's attention: functions of head size and dtype, never of the batch.

Chosen for registers and shared memory on sm_80, sm_90 and gfx942; not yet measured.
"""

from typing import NamedTuple

import torch
import triton

# positions of one decode part, and how many parts a sequence has at most
SPLIT = 256
MAX_PARTS = 32


class Tiles(NamedTuple):
    """Rows and positions of a tile, and the shape of the program that computes it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def padded_dim(head_dim: int) -> int:
    """The head's numbers in a tile: a power of two, at least what one matrix instruction takes."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def decode_tiles(head_dim: int, group: int, dtype: torch.dtype) -> Tiles:
    """Tiles of one query of `group` heads."""
    block_m = max(16, int(triton.next_power_of_2(group)))
    if dtype == torch.float32:
        return Tiles(block_m, 32 if padded_dim(head_dim) <= 128 else 16, 8, 1)
    if padded_dim(head_dim) <= 128:
        return Tiles(block_m, 64, 4, 2)
    return Tiles(block_m, 32, 8, 2)


def prefill_tiles(head_dim: int, group: int, dtype: torch.dtype) -> Tiles:
    """Tiles of several queries, `group` heads of each."""
    least = int(triton.next_power_of_2(group))
    if dtype == torch.float32:
        return Tiles(max(16, least), 32 if padded_dim(head_dim) <= 128 else 16, 8, 1)
    if padded_dim(head_dim) <= 128:
        return Tiles(max(128, least), 64 if padded_dim(head_dim) <= 64 else 32, 8, 2)
    return Tiles(max(64, least), 16, 8, 2)


def write_warps(block_h: int, block_d: int) -> int:
    """Warps that store the heads of one token."""
    return max(1, min(8, block_h * block_d // 256))
