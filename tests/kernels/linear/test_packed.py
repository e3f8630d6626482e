"""PackedLinear: right, and the same for a row whatever stands beside it."""

import pytest
import torch

from tenora_kernels import dispatch
from tenora_kernels.errors import DtypeError, KernelInputError, ShapeError
from tenora_kernels.linear import PackedLinear, reference
from tenora_kernels.testing import ODD_SIZES, is_close, is_far

# SmolLM2-135M: qkv, o, gate_up, down; the output head is cut to a ninth to spare time
SMOLLM2 = ((960, 576), (576, 576), (3072, 576), (576, 1536), (5461, 576))
ROWS = (*range(1, 66), 100, 128, 512)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ODD_SIZES)
def test_equals_reference(size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    weight = (torch.randn(size, 65, generator=generator) / 8).to(dtype)
    bias = torch.randn(size, generator=generator).to(dtype)
    x = torch.randn(7, 65, generator=generator).to(dtype)
    expected = reference.linear(x, weight, bias)
    assert is_far(reference.linear(x, weight), expected, dtype)
    assert is_close(PackedLinear(weight, bias)(x), expected, dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("out_features", "in_features"), SMOLLM2)
def test_row_is_independent_of_the_number_of_rows(
    out_features: int, in_features: int, threads: int, generator: torch.Generator
) -> None:
    torch.set_num_threads(threads)
    linear = PackedLinear(torch.randn(out_features, in_features, generator=generator))
    x = torch.randn(max(ROWS), in_features, generator=generator)
    whole = linear(x)
    for rows in ROWS if threads == 1 and out_features < 1000 else ROWS[::6]:
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows
        assert torch.equal(linear(x[-rows:]), whole[-rows:]), rows


def test_unpacked_row_is_independent_of_the_number_of_rows(generator: torch.Generator) -> None:
    linear = PackedLinear(torch.randn(96, 576, generator=generator, dtype=torch.float64))
    x = torch.randn(128, 576, generator=generator, dtype=torch.float64)
    whole = linear(x)
    assert not linear.is_packed
    for rows in range(1, 66):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows


def test_empty_batch_gives_empty_result() -> None:
    assert PackedLinear(torch.ones(5, 3))(torch.empty(0, 3)).shape == (0, 5)


def test_states_its_shape_and_dtype() -> None:
    linear = PackedLinear(torch.ones(5, 3, dtype=torch.bfloat16))
    assert (linear.out_features, linear.in_features) == (5, 3)
    assert linear.dtype == torch.bfloat16


def test_reference_backend_keeps_the_weight_as_given() -> None:
    dispatch.use_backend("reference")
    try:
        linear = PackedLinear(torch.eye(4))
    finally:
        dispatch.use_backend("cpu")
    assert not linear.is_packed
    assert torch.equal(linear(torch.eye(4)), torch.eye(4))


@pytest.mark.parametrize(
    ("weight", "bias", "error"),
    [
        (torch.ones(3), None, ShapeError),
        (torch.ones(3, 2, dtype=torch.int8), None, DtypeError),
        (torch.ones(3, 2), torch.ones(2), ShapeError),
        (torch.ones(3, 2), torch.ones(3, dtype=torch.float64), DtypeError),
    ],
)
def test_refuses_what_does_not_fit(
    weight: torch.Tensor, bias: torch.Tensor | None, error: type[KernelInputError]
) -> None:
    with pytest.raises(error):
        PackedLinear(weight, bias)
