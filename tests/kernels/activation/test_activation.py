"""Gated activations: the first half is the gate."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from tenora_kernels.activation import gelu_tanh_mul, silu_mul
from tenora_kernels.dispatch import Op
from tenora_kernels.testing import ODD_SIZES, is_close, is_far

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ODD_SIZES)
def test_first_half_is_the_gate(size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    gate_up = torch.randn(7, 2 * size, generator=generator).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=1)
    expected = F.silu(gate) * up
    assert is_far(F.silu(up) * gate, expected, dtype)
    assert is_close(silu_mul(gate_up), expected, dtype)
    assert silu_mul(gate_up).dtype == dtype
    expected = F.gelu(gate, approximate="tanh") * up
    assert is_far(F.gelu(up, approximate="tanh") * gate, expected, dtype)
    assert is_close(gelu_tanh_mul(gate_up), expected, dtype)


@pytest.mark.parametrize("op", [silu_mul, gelu_tanh_mul])
def test_row_is_independent_of_its_neighbours(
    op: Op[[Tensor], Tensor], generator: torch.Generator
) -> None:
    gate_up = torch.randn(65, 2 * 1536, generator=generator)
    whole = op(gate_up)
    for rows in (1, 3, 16):
        assert torch.equal(op(gate_up[-rows:]), whole[-rows:])
    assert op(gate_up[:0]).shape == (0, 1536)
