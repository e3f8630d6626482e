"""The specification of a cache of float8 e4m3: what a stored number is, given its head's scale.

`write_kv` with scales stores `to_fp8(x, scale)`; `paged_attention` with scales is the reference's
over `from_fp8(cache, scale)`. A scale is float32 [Hkv], one for each KV head, or [1] for all.
"""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def to_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """Return x / scale to nearest even, saturated at 448, NaN kept. x [..., Hkv, D]."""
    return (x.float() / scale.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def from_fp8(cache: Tensor, scale: Tensor) -> Tensor:
    """Return what a cache [Hkv, num_blocks, block_size, D] means: float32 of its shape."""
    return cache.float() * scale.view(-1, 1, 1, 1)
