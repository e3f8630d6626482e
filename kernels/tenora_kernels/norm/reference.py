"""The specification of RMS normalisation (arXiv:1910.07467), in Llama's rounding order."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x scaled to unit root mean square, times `weight`.

    Semantics: y[t, i] = weight[i] * round(x[t, i] / sqrt(mean_j x[t, j]^2 + eps)),
    where statistics are float32 and `round` goes back to x's dtype before the product.
    Args: x [..., H]; weight [H] of x's dtype; eps added to the mean square.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + eps)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `(rms_norm(x + residual), x + residual)`.

    Args: x, residual [..., H] of one dtype; the sum is rounded to that dtype first.
    """
    summed = x + residual
    return rms_norm(summed, weight, eps), summed
