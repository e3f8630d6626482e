"""The deterministic product: right for any shape, and a row never depends on its neighbours."""

import pytest
import torch

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.linear.triton_ops import _launch, linear
from tenora_kernels.testing import is_close, is_far, poisoned


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (65, 129, 63)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_equals_float64_with_poison_around(
    shape: tuple[int, int, int], dtype: torch.dtype, has_bias: bool, generator: torch.Generator
) -> None:
    rows, out_features, in_features = shape
    memory = poisoned(rows + 2, in_features + 3, dtype=dtype)
    x = memory[1 : rows + 1, 1 : in_features + 1]
    x.copy_(torch.randn(rows, in_features, generator=generator))
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    bias = torch.randn(out_features, generator=generator).to(dtype) if has_bias else None
    expected = x.double() @ weight.double().T
    if bias is not None:
        expected += bias.double()
    without_last = expected - x[:, -1:].double() * weight[:, -1].double()
    assert is_far(without_last, expected, dtype)
    assert is_close(linear(x, weight, bias), expected, dtype)


def test_row_has_the_same_bits_in_any_batch(generator: torch.Generator) -> None:
    x = torch.randn(97, 70, generator=generator)
    weight = torch.randn(66, 70, generator=generator)
    together = linear(x, weight)
    x[0] = float("nan")
    for rows in (slice(96, 97), slice(3, 66), slice(0, 97)):
        assert torch.equal(linear(x[rows], weight)[-1], together[rows][-1])
    assert linear(x, weight)[0].isnan().all()


def test_splits_in_planes_and_in_one_program_give_the_same_bits(
    generator: torch.Generator,
) -> None:
    x = torch.randn(33, 2100, generator=generator)
    weight = torch.randn(65, 2100, generator=generator)
    expected = x.double() @ weight.double().T
    in_planes, in_one_program = linear(x, weight), torch.empty(33, 65)
    _launch((4, 1), x, weight, None, out=in_one_program, num_splits=3)
    assert is_far(expected - x[:, :1].double() * weight[:, 0].double(), expected, torch.float32)
    assert is_close(in_planes, expected, torch.float32)
    assert torch.equal(in_planes, in_one_program)


def test_empty_batch_and_wrong_shapes(generator: torch.Generator) -> None:
    weight = torch.randn(5, 4, generator=generator)
    assert linear(torch.empty(0, 4), weight).shape == (0, 5)
    with pytest.raises(ShapeError):
        linear(torch.empty(2, 5), weight)
    with pytest.raises(ShapeError, match="contiguous"):
        linear(torch.empty(2, 5), torch.empty(5, 3).T)
    with pytest.raises(DtypeError):
        linear(torch.empty(2, 4, dtype=torch.float64), weight.double())
