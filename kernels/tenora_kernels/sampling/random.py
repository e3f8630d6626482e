"""Uniform numbers that depend on (seed, position) only: no generator, no state, no order.

The number is SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) applied twice: once to
the seed, once to its result plus the position times the golden gamma. The top 53 bits make a
double in [0, 1). The same (seed, position) gives the same number on every machine.
"""

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """Return the number of (seed, position), in [0, 1). Both are taken modulo 2^64."""
    key = _finalise((seed + GOLDEN_GAMMA) & _MASK)
    bits = _finalise((key + (position + 1) * GOLDEN_GAMMA) & _MASK)
    return (bits >> 11) * 2.0**-53


def uniform_rows(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return `uniform` of each row, bit for bit: float64 [N] from two int64 [N].

    A seed of 2^63 or more is given as its two's complement, seed - 2^64.
    """
    gamma = _signed(GOLDEN_GAMMA)
    key = _finalise_rows(seeds + gamma)
    bits = _finalise_rows(key + (positions + 1) * gamma)
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def _finalise(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def _finalise_rows(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift right of int64, whose own shift carries the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
