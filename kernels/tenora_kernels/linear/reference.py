"""The specification of the linear op: y = x W^T + b, accumulated in float32."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` in x's dtype.

    Semantics: y[t, o] = sum_i x[t, i] * weight[o, i] + bias[o]
    Args: x [T, in]; weight [out, in]; bias [out] or None; all of one dtype.
    """
    accumulate = torch.promote_types(x.dtype, torch.float32)
    y = x.to(accumulate) @ weight.to(accumulate).T
    if bias is not None:
        y = y + bias.to(accumulate)
    return y.to(x.dtype)


def largest_output(x: Tensor, weight: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return where `linear(x, weight)` is largest, and which rows are finite: [T], bool [T].

    The lowest index among equals, without the columns of `left_out` [out], bool.
    """
    y = linear(x, weight)
    is_finite = torch.isfinite(y).all(dim=1)
    return torch.argmax(y.masked_fill(left_out, -torch.inf), dim=1), is_finite
