"""Weights as 8-bit whole numbers: a quarter of float32's bytes, for decodes that wait for memory.

Only weights are rounded. Each `GROUP` of inputs of an output feature has its own step, and
products add in float32 what float32 inputs and the whole numbers give, so the only error is that
of the rounded weights.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from tenora_kernels.errors import DtypeError, ShapeError

LARGEST = 127
GROUP = 64  # INT8_GROUP of `native/src/packed.h`


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 [n, k] and float32 steps [n, ceil(k / GROUP)] of `weight` [n, k].

    Symmetric: the step of a group is its largest magnitude divided by 127, and 1 for zeros. Each
    weight is rounded by at most half a step.

    Raises:
        ShapeError, DtypeError: `weight` is not a floating matrix.
        ValueError: it holds what is not finite.
    """
    if weight.dim() != 2:
        raise ShapeError(f"a linear weight is [out, in], got {tuple(weight.shape)}")
    if not weight.is_floating_point():
        raise DtypeError(f"only floating weights are rounded to int8, got {weight.dtype}")
    n, k = weight.shape
    groups = F.pad(weight.detach().float(), (0, -k % GROUP)).view(n, -(-k // GROUP), GROUP)
    largest = groups.abs().amax(dim=2)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("a weight is not finite, so it cannot be rounded to int8")
    steps = torch.where(largest > 0, largest / LARGEST, 1.0)
    whole = torch.round(groups / steps[:, :, None]).clamp(-LARGEST, LARGEST)
    return whole.to(torch.int8).view(n, -1)[:, :k].contiguous(), steps


def dequantise(whole: Tensor, steps: Tensor) -> Tensor:
    """Return the weights float32 [n, k] that `quantise` stands for."""
    return whole.float() * steps.repeat_interleave(GROUP, dim=1)[:, : whole.shape[1]]
