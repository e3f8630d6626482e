"""RMS normalisation, with Llama's rounding order."""

import pytest
import torch

from tenora_kernels.norm import add_rms_norm, reference, rms_norm
from tenora_kernels.testing import ODD_SIZES, is_close, is_far

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ODD_SIZES)
def test_equals_reference(size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    x, residual = torch.randn(2, 7, size, generator=generator).to(dtype)
    weight = (1.5 + torch.rand(size, generator=generator)).to(dtype)
    expected = reference.rms_norm(x, weight, 1e-5)
    assert is_far(reference.rms_norm(x, torch.ones_like(weight), 1e-5), expected, dtype)
    assert is_close(rms_norm(x, weight, 1e-5), expected, dtype)
    normed, summed = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(summed, x + residual)
    assert is_close(normed, reference.rms_norm(x + residual, weight, 1e-5), dtype)


def test_rounds_to_a_narrow_dtype_before_the_weight(generator: torch.Generator) -> None:
    x = torch.randn(4, 64, generator=generator).bfloat16()
    weight = (1 + torch.rand(64, generator=generator)).bfloat16()
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    got = rms_norm(x, weight, 1e-5)
    assert torch.equal(got, wide.bfloat16() * weight)
    assert not torch.equal(got, (wide * weight.float()).bfloat16())


def test_row_is_independent_of_its_neighbours(generator: torch.Generator) -> None:
    for size in (16, 64, 576, 2049, 4096):
        x, weight = torch.randn(65, size, generator=generator), torch.ones(size)
        whole = rms_norm(x, weight, 1e-5)
        for rows in (1, 2, 3, 16, 64):
            assert torch.equal(rms_norm(x[-rows:], weight, 1e-5), whole[-rows:])
    x[3] = float("nan")
    keep = torch.arange(65) != 3
    assert torch.equal(rms_norm(x, weight, 1e-5)[keep], whole[keep])


def test_takes_heads_and_strided_rows(generator: torch.Generator) -> None:
    wide = torch.randn(5, 6, 16, generator=generator)
    weight = torch.rand(16, generator=generator)
    expected = reference.rms_norm(wide[:, :4], weight, 1e-6)
    assert is_close(rms_norm(wide[:, :4], weight, 1e-6), expected, torch.float32)


def test_empty_batch_gives_empty_result() -> None:
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
