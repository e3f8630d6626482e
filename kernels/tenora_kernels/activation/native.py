"""Gated activations in C++; other dtypes than float32 run the reference."""

from collections.abc import Callable

import torch
from torch import Tensor

from tenora_kernels.activation import reference
from tenora_kernels.native import library


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up; see `reference.silu_mul`."""
    if not _is_plain(gate_up):
        return reference.silu_mul(gate_up)
    return _gated(library.library().tn_silu_mul, gate_up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up; see `reference.gelu_tanh_mul`."""
    if not _is_plain(gate_up):
        return reference.gelu_tanh_mul(gate_up)
    return _gated(library.library().tn_gelu_tanh_mul, gate_up)


def _is_plain(gate_up: Tensor) -> bool:
    return gate_up.dtype == torch.float32 and gate_up.is_contiguous()


def _gated(function: Callable[[int, int, int, int], None], gate_up: Tensor) -> Tensor:
    inner = gate_up.shape[-1] // 2
    y = torch.empty(*gate_up.shape[:-1], inner)
    function(gate_up.data_ptr(), y.data_ptr(), y.numel() // max(inner, 1), inner)
    return y
