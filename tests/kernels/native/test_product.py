"""The C++ product: every kind of weight, every number of rows, the same bits for a row."""

import pytest
import torch

from tenora_kernels import dispatch
from tenora_kernels.errors import BackendUnavailableError, KernelInputError
from tenora_kernels.linear import PackedLinear, reference
from tenora_kernels.linear.int8 import dequantise, quantise
from tenora_kernels.linear.native import NativeProduct
from tenora_kernels.native import library
from tenora_kernels.testing import ODD_SIZES, is_close, is_far, poisoned

KINDS = (torch.float32, torch.bfloat16, torch.float16)
ROWS = (*range(1, 27), 63, 64, 65, 107, 109, 130)


def _draw(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("in_features", [1, 2, 33, 576])
@pytest.mark.parametrize("out_features", ODD_SIZES)
def test_equals_reference_exactly_stored(
    out_features: int, in_features: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = (_draw(out_features, in_features, generator=generator) / in_features**0.5).to(dtype)
    bias = _draw(out_features, generator=generator)
    x = _draw(13, in_features, generator=generator)
    product = NativeProduct(weight, bias)
    expected = reference.linear(x.double(), weight.double(), bias.double())
    assert is_far(product(x) - bias, expected, torch.float32)
    assert is_close(product(x), expected, torch.float32)
    y = _draw(13, out_features, generator=generator)
    summed = y + expected
    product.add_(y, x)
    assert is_close(y, summed, torch.float32)


@pytest.mark.parametrize("rows", [1, 3, 6, 16, 130])
@pytest.mark.parametrize("in_features", [1, 8, 24, 129])
def test_a_tile_takes_many_narrow_panels(
    in_features: int, rows: int, generator: torch.Generator
) -> None:
    """A weight of few inputs: each tile passes over as many panels as its cache holds."""
    weight = _draw(1000 + in_features, in_features, generator=generator).half()
    bias = _draw(1000 + in_features, generator=generator)
    x = _draw(rows, in_features, generator=generator)
    product = NativeProduct(weight, bias)
    expected = reference.linear(x.double(), weight.double(), bias.double())
    assert is_close(product(x), expected, torch.float32)
    y = _draw(rows, 1000 + in_features, generator=generator)
    summed = y + expected
    product.add_(y, x)
    assert is_close(y, summed, torch.float32)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_row_has_the_same_bits_in_every_batch(
    dtype: torch.dtype, threads: int, generator: torch.Generator
) -> None:
    library.set_threads(threads)
    try:
        product = NativeProduct(_draw(131, 577, generator=generator).to(dtype), None)
        x = _draw(max(ROWS), 577, generator=generator)
        whole = product(x)
        for rows in ROWS:
            assert torch.equal(product(x[:rows]), whole[:rows]), rows
            assert torch.equal(product(x[-rows:]), whole[-rows:]), rows
    finally:
        library.set_threads(torch.get_num_threads())


@pytest.mark.parametrize("in_features", [1, 2, 33, 576])
def test_rounded_inputs_equal_the_product_of_rounded_values(
    in_features: int, generator: torch.Generator
) -> None:
    weight = (_draw(65, in_features, generator=generator) / in_features**0.5).bfloat16()
    x = _draw(130, in_features, generator=generator)
    product = NativeProduct(weight, None, rounds_input=True)
    expected = reference.linear(x.bfloat16().double(), weight.double())
    assert is_far(reference.linear(x.double(), weight.double()), expected, torch.float32)
    assert is_close(product(x), expected, torch.float32)
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), product(x)[:rows]), rows


def test_reads_nothing_beyond_a_row(generator: torch.Generator) -> None:
    memory = poisoned(9, 40)
    memory[:, 3:36] = _draw(9, 33, generator=generator)
    x = memory[:, 3:36]
    product = NativeProduct(_draw(17, 33, generator=generator).bfloat16(), None)
    assert torch.equal(product(x), product(x.contiguous()))
    assert product(x).isfinite().all()


def test_a_poisoned_row_stays_alone(generator: torch.Generator) -> None:
    product = NativeProduct(_draw(40, 64, generator=generator), None)
    x = _draw(16, 64, generator=generator)
    clean = product(x)
    x[5] = float("nan")
    others = torch.arange(16) != 5
    assert torch.equal(product(x)[others], clean[others])
    assert product(x)[5].isnan().all()


@pytest.mark.parametrize(
    "x",
    [torch.ones(2, 3), torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4, 2).T, torch.ones(4)],
)
def test_refuses_what_it_cannot_read(x: torch.Tensor) -> None:
    with pytest.raises(KernelInputError):
        NativeProduct(torch.ones(5, 4), None)(x)


@pytest.mark.parametrize("in_features", [1, 2, 33, 576])
@pytest.mark.parametrize("out_features", ODD_SIZES)
def test_int8_equals_the_product_of_its_whole_numbers(
    out_features: int, in_features: int, generator: torch.Generator
) -> None:
    weight = _draw(out_features, in_features, generator=generator) / in_features**0.5
    bias = _draw(out_features, generator=generator)
    x = _draw(13, in_features, generator=generator)
    whole, steps = quantise(weight)
    rounded = dequantise(whole, steps).double()
    expected = reference.linear(x.double(), rounded, bias.double())
    product = NativeProduct(weight, bias, rounds_to_int8=True)
    assert is_close(product(x), expected, torch.float32)
    y = _draw(13, out_features, generator=generator)
    summed = y + expected
    product.add_(y, x)
    assert is_close(y, summed, torch.float32)


def test_int8_rounds_each_weight_by_at_most_half_a_step(generator: torch.Generator) -> None:
    weight = _draw(37, 91, generator=generator) * torch.logspace(-6, 3, 37)[:, None]
    weight[5] = 0.0
    whole, steps = quantise(weight)
    assert steps.shape == (37, 2)
    error = (dequantise(whole, steps) - weight).abs()
    half_steps = steps.repeat_interleave(64, dim=1)[:, :91] / 2
    assert bool((error <= 1.0001 * half_steps).all())
    assert whole.abs().amax() == 127
    assert not whole[5].any()


def test_an_int8_row_has_the_same_bits_in_every_batch(generator: torch.Generator) -> None:
    product = NativeProduct(_draw(131, 577, generator=generator), None, rounds_to_int8=True)
    x = _draw(max(ROWS), 577, generator=generator)
    whole = product(x)
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), whole[:rows]), rows


def test_int8_reads_a_quarter_of_float32() -> None:
    weight = torch.ones(160, 320)
    narrow = NativeProduct(weight, None, rounds_to_int8=True)
    assert narrow.nbytes == 160 * (320 + 4 * 5)  # five groups have a step each
    assert NativeProduct(weight, None).nbytes == 4 * 160 * 320


def test_int8_refuses_what_is_not_finite() -> None:
    weight = torch.ones(3, 4)
    weight[1, 2] = float("inf")
    with pytest.raises(ValueError, match="not finite"):
        quantise(weight)


def test_int8_is_refused_where_no_native_product_runs() -> None:
    dispatch.use_backend("reference")  # the fixture binds the one before again
    with pytest.raises(BackendUnavailableError, match="int8"):
        PackedLinear(torch.ones(4, 4), rounds_to_int8=True)
