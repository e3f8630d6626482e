"""Gated activations on the device: right for any width, and a row is alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tenora_kernels.activation import reference
from tenora_kernels.activation.triton_ops import gelu_tanh_mul, silu_mul
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.testing import is_close, is_far, poisoned

PAIRS = [
    (silu_mul, reference.silu_mul, reference.gelu_tanh_mul),
    (gelu_tanh_mul, reference.gelu_tanh_mul, reference.silu_mul),
]
Gated = Callable[[Tensor], Tensor]


@pytest.mark.parametrize("functions", PAIRS)
@pytest.mark.parametrize(
    ("tokens", "size", "dtype"),
    [(63, 65, torch.float32), (2, 2049, torch.float16), (3, 33, torch.bfloat16)],
)
def test_equals_float64_with_poison_around(
    functions: tuple[Gated, Gated, Gated],
    tokens: int,
    size: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    function, plain, other = functions
    memory = poisoned(tokens + 2, 2 * size + 3, dtype=dtype)
    gate_up = memory[1:-1, 1 : 2 * size + 1]
    gate_up.copy_(4 * torch.randn(tokens, 2 * size, generator=generator))
    expected = plain(gate_up.double())
    assert is_far(other(gate_up.double()), expected, dtype)
    assert is_close(function(gate_up), expected, dtype)


@pytest.mark.parametrize("function", [silu_mul, gelu_tanh_mul])
def test_row_is_alone_and_large_gates_stay_finite(
    function: Gated, generator: torch.Generator
) -> None:
    gate_up = torch.randn(2, 3, 40, generator=generator)
    gate_up[1, 1, :10] = torch.tensor([1e3, -1e3]).repeat(5)
    together = function(gate_up)
    gate_up[0] = float("nan")
    assert together.isfinite().all()
    assert torch.equal(function(gate_up)[1], together[1])
    assert torch.equal(function(gate_up[1, 1]), together[1, 1])


def test_empty_batch_and_wrong_tensors() -> None:
    assert silu_mul(torch.zeros(0, 8)).shape == (0, 4)
    with pytest.raises(ShapeError):
        silu_mul(torch.zeros(1, 7))
    with pytest.raises(DtypeError):
        silu_mul(torch.zeros(1, 8, dtype=torch.float64))
