"""The specification of applying rotary position embedding, in Hugging Face's half rotation."""

import torch
from torch import Tensor


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return rotated `(q, k)` as new tensors; nothing is mutated.

    Semantics: y[t, h] = x[t, h] * cos[t] + rotate_half(x[t, h]) * sin[t],
    rotate_half(x) = (-x[D/2:], x[:D/2]).
    Args: q [T, Hq, D]; k [T, Hkv, D]; cos, sin [T, D], rounded to q's dtype first.
    """
    cos = cos.to(q.dtype).unsqueeze(1)  # [T, 1, D]
    sin = sin.to(q.dtype).unsqueeze(1)
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
