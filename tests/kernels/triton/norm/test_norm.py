"""RMS normalisation on the device: right for any width, and a row is alone."""

import pytest
import torch

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.norm import reference
from tenora_kernels.norm.triton_ops import add_rms_norm, rms_norm
from tenora_kernels.testing import is_close, is_far, poisoned

EPS = 1e-5


@pytest.mark.parametrize(
    ("tokens", "size", "dtype"),
    [
        (1, 1, torch.float32),
        (63, 65, torch.float32),
        (2, 2049, torch.float16),
        (3, 576, torch.bfloat16),
    ],
)
def test_equals_float64_with_poison_around(
    tokens: int, size: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    memory = poisoned(2, tokens + 2, size + 3, dtype=dtype)
    x, residual = memory[:, 1 : tokens + 1, 1 : size + 1]
    memory[:, 1 : tokens + 1, 1 : size + 1] = torch.randn(2, tokens, size, generator=generator)
    weight = torch.randn(size, generator=generator).to(dtype)
    expected = reference.rms_norm(x.double(), weight.double(), EPS)
    assert is_far(reference.rms_norm(x.double(), weight.double(), 100.0), expected, dtype)
    assert is_close(rms_norm(x, weight, EPS), expected, dtype)
    got, got_sum = add_rms_norm(x, residual, weight, EPS)
    # the interpreter cuts bfloat16 off where a GPU rounds
    is_exact = dtype != torch.bfloat16
    assert (
        torch.equal(got_sum, x + residual) if is_exact else is_close(got_sum, x + residual, dtype)
    )
    assert is_close(got, reference.rms_norm(got_sum.double(), weight.double(), EPS), dtype)


def test_row_has_the_same_bits_in_any_batch_and_beside_nan(generator: torch.Generator) -> None:
    x, weight = torch.randn(2, 5, 96, generator=generator), torch.randn(96, generator=generator)
    together = rms_norm(x, weight, EPS)
    assert together.shape == x.shape
    assert torch.equal(rms_norm(x[1, 4], weight, EPS), together[1, 4])
    x[0] = float("nan")
    damaged = rms_norm(x, weight, EPS)
    assert torch.equal(damaged[1], together[1])
    assert damaged[0].isnan().all()


def test_empty_batch_and_wrong_tensors() -> None:
    x, weight = torch.zeros(0, 8), torch.zeros(8)
    assert rms_norm(x, weight, EPS).shape == (0, 8)
    with pytest.raises(ShapeError):
        rms_norm(x, weight[:7], EPS)
    with pytest.raises(ShapeError):
        add_rms_norm(x, x[:, :7], weight, EPS)
    with pytest.raises(DtypeError):
        rms_norm(x.double(), weight.double(), EPS)
