"""Medians over alternations, and ratios between systems that were measured side by side."""

from collections.abc import Mapping
from statistics import median

Speeds = Mapping[int, float]
"""Output tokens per second by visit."""


def median_speed(speeds: Speeds) -> float | None:
    """The median over visits; None without any."""
    return median(speeds.values()) if speeds else None


def median_ratio(ours: Speeds, theirs: Speeds) -> float | None:
    """Median over visits of ours / theirs, each pair from one alternation.

    A machine whose speed drifts moves both halves of a pair. None where no visit has both.
    """
    ratios = [ours[visit] / theirs[visit] for visit in sorted(ours.keys() & theirs.keys())]
    return median(ratios) if ratios else None
