"""Inverting one row's descending distribution by buckets of its values, whatever its shape.

Positive floats are ordered as their bits, so the exponent and the first mantissa bits are a
bucket number. The masses of the buckets say which one holds the answer; only that one is sorted.
"""

import torch
from torch import Tensor

# sign, exponent and four mantissa bits remain: about two thousand buckets below 1.0
BUCKET_SHIFT = 19


class _Buckets:
    """The probabilities of one row, and the mass of every bucket from the largest down."""

    def __init__(self, p: Tensor) -> None:
        self.p = p
        # the sign bit of a NaN must not make a negative bucket
        self.bucket_of = (p.view(torch.int32) & 0x7FFFFFFF) >> BUCKET_SHIFT
        masses = torch.bincount(self.bucket_of, weights=p.double())
        self.highest = masses.shape[0] - 1
        self.cumulative = masses.flip(0).cumsum(0)
        # zero probabilities share the lowest bucket of all; it must never be the answer
        self.last_position = self.highest - int((masses > 0).to(torch.uint8).argmax())

    def find(self, target: float, *, beyond: bool) -> tuple[int, float]:
        """Return the first token whose cumulative mass reaches `target`, and that mass.

        With `beyond` the mass must exceed the target.
        """
        position = min(_count_below(self.cumulative, target, beyond), self.last_position)
        before = float(self.cumulative[position - 1]) if position else 0.0
        members = (self.bucket_of == self.highest - position).nonzero().flatten()
        values, order = self.p[members].sort(descending=True, stable=True)
        cumulative = values.double().cumsum(0) + before
        rank = min(_count_below(cumulative, target, beyond), members.shape[0] - 1)
        return int(members[order[rank]]), float(cumulative[rank])


def search_row(p: Tensor, mass: float, top_p: float, uniform: float) -> int:
    """Return the choice of one row [V] of float32 probabilities that sum to `mass`.

    It is `reference.sample`'s, up to the rounding of float64 sums in another order.
    """
    buckets = _Buckets(p)
    kept_mass = mass if top_p >= 1 else buckets.find(top_p, beyond=False)[1]
    return buckets.find(uniform * kept_mass, beyond=True)[0]


def _count_below(cumulative: Tensor, target: float, beyond: bool) -> int:
    below = cumulative <= target if beyond else cumulative < target
    return int(below.sum())
