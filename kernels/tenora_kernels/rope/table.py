"""Cosine and sine tables of rotary position embedding (arXiv:2104.09864), one per base model.

Rope types are Hugging Face's: `default`, `linear` and `llama3`. Others are refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tenora_kernels.errors import KernelInputError, UnsupportedRopeTypeError


def build_rope_table(
    head_dim: int, max_positions: int, theta: float, scaling: Mapping[str, Any] | None = None
) -> tuple[Tensor, Tensor]:
    """Return `(cos, sin)`, float32 [max_positions, head_dim], the two halves alike.

    Semantics: cos[p, i] = cos(p * f[i mod head_dim / 2]), f[i] = theta^(-2 i / head_dim), scaled.
    Args: scaling is the model's `rope_scaling` (or `rope_parameters`) mapping, None for default.
    Raises:
        UnsupportedRopeTypeError: the mapping names another type.
        KernelInputError: head_dim is odd, or the mapping lacks a number its type needs.
    """
    if head_dim <= 0 or head_dim % 2:
        raise KernelInputError(f"rope needs a positive even head_dim, got {head_dim}")
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    frequencies = _scaled(frequencies, scaling)
    positions = torch.arange(max_positions, dtype=torch.float32)
    half = torch.outer(positions, frequencies)  # [max_positions, head_dim / 2]
    angles = torch.cat((half, half), dim=-1)
    return angles.cos(), angles.sin()


def _scaled(frequencies: Tensor, scaling: Mapping[str, Any] | None) -> Tensor:
    rope_type = "default"
    if scaling:
        rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    if scaling is None or rope_type == "default":
        return frequencies
    if rope_type == "linear":
        return frequencies / _number(scaling, "factor")
    if rope_type == "llama3":
        return _llama3(frequencies, scaling)
    raise UnsupportedRopeTypeError(
        f"rope type {rope_type!r} is not supported; supported types are default, linear, llama3"
    )


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, the band between is blended."""
    factor = _number(scaling, "factor")
    low = _number(scaling, "low_freq_factor")
    high = _number(scaling, "high_freq_factor")
    original_length = _number(scaling, "original_max_position_embeddings")
    wavelengths = 2 * math.pi / frequencies
    blend = ((original_length / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies


def _number(scaling: Mapping[str, Any], key: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KernelInputError(f"rope scaling needs the number {key!r}, got {value!r}")
    return float(value)
