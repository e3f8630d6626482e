"""RMS normalisation through torch's fused operator where its rounding order is ours."""

import torch
from torch import Tensor

from tenora_kernels.norm import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x scaled to unit root mean square, times `weight`; see `reference.rms_norm`."""
    if x.dtype != torch.float32 or x.shape[0] == 0:
        # the fused operator multiplies by weight before it rounds to a narrow dtype
        return reference.rms_norm(x, weight, eps)
    return torch.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `(rms_norm(x + residual), x + residual)`."""
    summed = x + residual
    return rms_norm(summed, weight, eps), summed
