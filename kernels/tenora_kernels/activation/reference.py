"""The specification of the gated activations of the feed-forward block."""

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up.

    Semantics: y[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i]
    Args: gate_up [..., 2 I], the gate half first. Returns: [..., I].
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up with the tanh approximation (arXiv:1606.08415).

    Semantics: y[t, i] = gelu_tanh(gate_up[t, i]) * gate_up[t, I + i]
    Args: gate_up [..., 2 I], the gate half first. Returns: [..., I].
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
