"""The largest output through a screen: the product's own choice, without most of the product."""

import math

import pytest
import torch

from tenora_kernels.errors import BackendUnavailableError, KernelInputError
from tenora_kernels.linear import reference
from tenora_kernels.linear.int8 import dequantise, quantise
from tenora_kernels.linear.native import NativeProduct
from tenora_kernels.native import library

pytestmark = pytest.mark.skipif(not library.has_screens(), reason="this processor has no screens")

DTYPES = (torch.float32, torch.bfloat16)


def _none_of(columns: int) -> torch.Tensor:
    return torch.zeros(columns, dtype=torch.bool)


def _assert_same_choice(
    product: NativeProduct, x: torch.Tensor, left_out: torch.Tensor
) -> torch.Tensor:
    """Compare with the whole product, bit for bit; returns the panels that were computed."""
    found = product.largest(x, left_out)
    outputs = product(x)
    is_finite = torch.isfinite(outputs).all(dim=1)
    expected = outputs.masked_fill(left_out, -torch.inf).argmax(dim=1)
    assert torch.equal(found.is_finite, is_finite)
    assert torch.equal(found.index[is_finite], expected[is_finite])
    return found.exact_panels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_features", [1, 2, 33, 64, 65, 129, 576])
@pytest.mark.parametrize("out_features", [1, 7, 8, 9, 16, 17, 31, 33, 64, 1000])
def test_chooses_what_the_product_is_largest_at(
    out_features: int, in_features: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    product = NativeProduct(weight, None, finds_largest=True)
    for rows in (1, 2, 3, 4, 5, 11, 16):
        x = torch.randn(rows, in_features, generator=generator)
        _assert_same_choice(product, x, _none_of(out_features))


def test_agrees_with_the_specification(generator: torch.Generator) -> None:
    weight = torch.randn(333, 96, generator=generator)
    x = torch.randn(9, 96, generator=generator)
    left_out = torch.rand(333, generator=generator) < 0.3
    found = NativeProduct(weight, None, finds_largest=True).largest(x, left_out)
    index, is_finite = reference.largest_output(x.double(), weight.double(), left_out)
    assert torch.equal(found.index, index)
    assert torch.equal(found.is_finite, is_finite)


@pytest.mark.parametrize("rounds_input", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_near_equals_are_told_apart_by_the_product(
    scale: float, rounds_input: bool, generator: torch.Generator
) -> None:
    """Columns that differ in a last bit of one weight, far below what 8 bits tell apart."""
    column = torch.randn(1, 320, generator=generator).bfloat16()
    weight = column.repeat(700, 1)
    weight.view(torch.int16)[torch.arange(700), torch.arange(700) % 320] += (
        torch.arange(700) % 3 - 1
    ).to(torch.int16)
    product = NativeProduct(weight, None, rounds_input=rounds_input, finds_largest=True)
    x = scale * torch.randn(13, 320, generator=generator)
    _assert_same_choice(product, x, _none_of(700))
    _assert_same_choice(product, scale * column.float().repeat(3, 1), _none_of(700))


def test_takes_the_lowest_among_equals(generator: torch.Generator) -> None:
    row = torch.randn(1, 128, generator=generator)
    weight = torch.randn(500, 128, generator=generator)
    weight[[77, 78, 311, 499]] = 3.0 * row
    product = NativeProduct(weight, None, finds_largest=True)
    assert product.largest(row, _none_of(500)).index.tolist() == [77]
    left_out = _none_of(500)
    left_out[[77, 78]] = True
    assert product.largest(row, left_out).index.tolist() == [311]


def test_zeros_and_what_is_nearly_nothing(generator: torch.Generator) -> None:
    weight = torch.randn(100, 70, generator=generator)
    weight[40:60] = 0.0
    x = torch.randn(4, 70, generator=generator)
    x[1] = 0.0
    x[2] *= 1e-38
    x[3, 1:] = 0.0
    _assert_same_choice(NativeProduct(weight, None, finds_largest=True), x, _none_of(100))
    tiny = NativeProduct(1e-36 * weight, None, finds_largest=True)
    _assert_same_choice(tiny, x, _none_of(100))


def test_damage_stays_in_its_row(generator: torch.Generator) -> None:
    weight = torch.randn(200, 96, generator=generator)
    x = torch.randn(7, 96, generator=generator)
    x[1, 5], x[3, 95], x[5, 0] = math.nan, math.inf, -math.inf
    product = NativeProduct(weight, None, finds_largest=True)
    _assert_same_choice(product, x, _none_of(200))
    found = product.largest(x, _none_of(200))
    assert found.is_finite.tolist() == [True, False, True, False, True, False, True]


@pytest.mark.parametrize("weight_scale", [1e-36, 1e-30, 1e-12, 1.0, 1e12, 1e18])
def test_any_scale(weight_scale: float, generator: torch.Generator) -> None:
    """From what no 8 bits are rounded of to sums that overflow."""
    weight = weight_scale * torch.randn(300, 96, generator=generator)
    product = NativeProduct(weight, None, finds_largest=True)
    exponents = range(-44, 38, 2)
    x = torch.randn(len(exponents), 96, generator=generator)
    x *= torch.tensor([10.0**e for e in exponents]).unsqueeze(1)
    _assert_same_choice(product, x, _none_of(300))
    x[:, ::2] *= 1e-9  # large and small ones in a group
    _assert_same_choice(product, x, _none_of(300))
    x[:, 64:] *= 1e-12  # and in groups of their own
    _assert_same_choice(product, x, _none_of(300))


def test_all_columns_left_out() -> None:
    product = NativeProduct(torch.ones(40, 64), None, finds_largest=True)
    found = product.largest(torch.ones(2, 64), ~_none_of(40))
    assert found.index.tolist() == [0, 0]
    assert found.is_finite.tolist() == [True, True]


def test_int8_weights_are_the_ones_that_the_product_has(generator: torch.Generator) -> None:
    weight = torch.randn(300, 200, generator=generator)
    product = NativeProduct(weight, None, rounds_to_int8=True, finds_largest=True)
    x = torch.randn(9, 200, generator=generator)
    _assert_same_choice(product, x, _none_of(300))
    expected = reference.linear(x.double(), dequantise(*quantise(weight)).double())
    assert torch.equal(product.largest(x, _none_of(300)).index, expected.argmax(dim=1))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_row_is_alone(threads: int, generator: torch.Generator) -> None:
    weight = torch.randn(3000, 130, generator=generator).bfloat16()
    product = NativeProduct(weight, None, finds_largest=True)
    x = torch.randn(70, 130, generator=generator)
    library.set_threads(threads)
    try:
        whole = product.largest(x, _none_of(3000))
        for rows in (1, 2, 3, 4, 5, 16, 33, 69):
            part = product.largest(x[-rows:], _none_of(3000))
            assert torch.equal(part.index, whole.index[-rows:])
            assert torch.equal(part.exact_panels, whole.exact_panels[-rows:])
        scattered = torch.randn(70, 200, generator=generator)[:, :130]
        _assert_same_choice(product, scattered, _none_of(3000))
    finally:
        library.set_threads(torch.get_num_threads())


def test_most_of_a_peaked_product_is_not_computed(generator: torch.Generator) -> None:
    """Rows that point at one of the columns, as hidden states at an embedding."""
    weight = torch.randn(8000, 256, generator=generator).bfloat16()
    x = weight[::500].float() + 0.5 * torch.randn(16, 256, generator=generator)
    product = NativeProduct(weight, None, finds_largest=True)
    panels = _assert_same_choice(product, x, _none_of(8000))
    assert int(panels.max()) <= 2
    flat = NativeProduct(torch.ones(8000, 256), None, finds_largest=True)
    panels = _assert_same_choice(flat, x, _none_of(8000))
    assert len(set(panels.tolist())) == 1
    assert int(panels[0]) >= 8000 // 32  # all of them


def test_what_has_no_screen(generator: torch.Generator) -> None:
    weight = torch.randn(40, 64, generator=generator)
    damaged = weight.clone()
    damaged[3, 3] = math.nan
    assert NativeProduct(weight, None, finds_largest=True).finds_largest
    for product in (
        NativeProduct(weight, None),
        NativeProduct(weight, torch.ones(40), finds_largest=True),
        NativeProduct(weight.half(), None, finds_largest=True),
        NativeProduct(damaged, None, finds_largest=True),
        NativeProduct(1e20 * weight, None, finds_largest=True),
        NativeProduct(weight[:0], None, finds_largest=True),
    ):
        assert not product.finds_largest
        with pytest.raises(BackendUnavailableError):
            product.largest(weight, _none_of(40))


def test_wrong_input_is_refused() -> None:
    product = NativeProduct(torch.ones(40, 64), None, finds_largest=True)
    for x, left_out in (
        (torch.ones(2, 63), _none_of(40)),
        (torch.ones(2, 64).double(), _none_of(40)),
        (torch.ones(64), _none_of(40)),
        (torch.ones(64, 2).T, _none_of(40)),
        (torch.ones(2, 64), _none_of(39)),
        (torch.ones(2, 64), torch.zeros(40)),
    ):
        with pytest.raises(KernelInputError):
            product.largest(x, left_out)
    assert product.largest(torch.ones(0, 64), _none_of(40)).index.shape == (0,)
