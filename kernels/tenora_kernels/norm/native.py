"""RMS normalisation in C++; other dtypes than float32 run the torch twin."""

import torch
from torch import Tensor

from tenora_kernels.native import library
from tenora_kernels.norm import cpu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x scaled to unit root mean square, times `weight`; see `reference.rms_norm`."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return cpu.rms_norm(x, weight, eps)
    width = weight.shape[0]
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, width)
    y = torch.empty(x.shape)
    library.library().tn_rms_norm(
        rows.data_ptr(),
        rows.stride(0),
        weight.data_ptr(),
        eps,
        y.data_ptr(),
        rows.shape[0],
        width,
    )
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `(rms_norm(x + residual), x + residual)`."""
    if any(t.dtype != torch.float32 or not t.is_contiguous() for t in (x, residual, weight)):
        return cpu.add_rms_norm(x, residual, weight, eps)
    width = weight.shape[0]
    summed, y = torch.empty(x.shape), torch.empty(x.shape)
    library.library().tn_add_rms_norm(
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        eps,
        summed.data_ptr(),
        y.data_ptr(),
        x.numel() // width,
        width,
    )
    return y, summed
