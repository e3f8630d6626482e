"""Choosing tokens on the device: the reference's choice, without sorting, row by row."""

import pytest
import torch
from torch import Tensor

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.sampling import reference, top_k_reference, uniform
from tenora_kernels.sampling.triton_ops import (
    finite_rows,
    greedy,
    sample,
    sample_top_k,
    uniform_rows,
)
from tenora_kernels.testing import poisoned

VOCABULARIES = (1, 63, 2049)
DTYPES = [torch.float32, torch.bfloat16]


def _rows(number: float, count: int) -> Tensor:
    return torch.full((count,), number, dtype=torch.float64)


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(1, torch.float32), (63, torch.float16), (2049, torch.bfloat16), (5000, torch.float32)],
)
def test_greedy_takes_the_lowest_of_equals(
    vocabulary: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits = poisoned(6, vocabulary + 5, dtype=dtype)[:, 1 : vocabulary + 1]
    logits.copy_(torch.randn(6, vocabulary, generator=generator))
    logits[0] = 1.0
    logits[1] = -float("inf")
    logits[2, vocabulary // 3 :: 7] = 50.0
    expected = reference.greedy(logits).tolist()
    assert expected[:3] == [0, 0, vocabulary // 3]
    logits[3] = float("nan")
    got = greedy(logits).tolist()
    assert 0 <= got.pop(3) < vocabulary
    assert got == expected[:3] + expected[4:]
    assert greedy(logits[:0]).shape == (0,)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_sample_equals_reference(vocabulary: int, generator: torch.Generator) -> None:
    sharpness = torch.tensor([[4.0], [4.0], [0.1], [2.0], [9.0], [1.0]])
    logits = sharpness * torch.randn(6, vocabulary, generator=generator)
    logits[5] = logits[5].bfloat16().float()  # many equal ones
    top_p = torch.tensor([0.95, 1.0, 0.3, 1.0, 1e-9, 0.9])
    numbers = torch.tensor([0.5, 0.0, 0.999, 0.999, 0.5, 0.7], dtype=torch.float64)
    arguments = (torch.full((6,), 0.8), top_p, numbers)
    expected = reference.sample(logits, *arguments).tolist()
    assert sample(logits, *arguments).tolist() == expected
    if vocabulary > 63:
        wrong = reference.sample(logits, 2 * arguments[0], *arguments[1:]).tolist()
        assert sum(a != b for a, b in zip(wrong, expected, strict=True)) > 2


def test_sample_tells_equal_tokens_apart_by_index() -> None:
    logits = torch.zeros(5, 4096, dtype=torch.bfloat16)
    logits[:, 100] = -float("inf")
    numbers = torch.tensor([0.0, 0.02, 0.3, 0.7, 1 - 2.0**-53], dtype=torch.float64)
    arguments = (torch.ones(5), torch.tensor([1.0, 1.0, 0.25, 1.0, 1.0]), numbers)
    expected = reference.sample(logits, *arguments).tolist()
    assert sample(logits, *arguments).tolist() == expected
    assert len(set(expected)) == 5


def test_top_k_equals_its_reference(generator: torch.Generator) -> None:
    logits = torch.randn(6, 2049, generator=generator)
    logits[3:] = logits[3:].bfloat16().float()  # a cut between equal ones
    top_k = torch.tensor([1, 7, 0, 400, 300, 10_000])
    top_p = torch.tensor([1.0, 0.5, 0.9, 1.0, 0.8, 1.0])
    arguments = (torch.ones(6), top_k, top_p, _rows(0.999, 6))
    expected = top_k_reference.sample_top_k(logits, *arguments).tolist()
    assert sample_top_k(logits, *arguments).tolist() == expected
    all_kept = (arguments[0], torch.zeros_like(top_k), *arguments[2:])
    uncut = top_k_reference.sample_top_k(logits, *all_kept).tolist()
    assert all(uncut[row] != expected[row] for row in (0, 1, 3, 4))


def test_tiny_temperature_is_greedy(generator: torch.Generator) -> None:
    logits = 100 * torch.randn(2, 512, generator=generator)
    logits[0, :100] = -float("inf")
    got = sample(logits, torch.tensor([0.0, 1e-12]), torch.ones(2), _rows(0.999, 2))
    assert got.tolist() == greedy(logits).tolist()


def test_row_chooses_the_same_beside_any_others(generator: torch.Generator) -> None:
    logits = 3 * torch.randn(4, 3000, generator=generator)
    numbers = torch.rand(4, generator=generator, dtype=torch.float64)
    top_p, temperature = torch.tensor([0.9, 1.0, 0.5, 0.99]), torch.tensor([1.0, 0.5, 2.0, 0.7])
    together = sample(logits, temperature, top_p, numbers)
    logits[1] = float("nan")
    logits[2] = -float("inf")
    damaged = sample(logits, temperature, top_p, numbers)
    assert damaged[[0, 3]].tolist() == together[[0, 3]].tolist()
    assert ((damaged >= 0) & (damaged < 3000)).all()
    alone = sample(logits[3:], temperature[3:], top_p[3:], numbers[3:])
    assert alone.tolist() == together[3:].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_rows(dtype: torch.dtype, generator: torch.Generator) -> None:
    logits = 1e38 * torch.ones(5, 2100, dtype=dtype)
    logits[1, 0], logits[2, -1], logits[4, 2047] = float("nan"), float("inf"), -float("inf")
    assert finite_rows(logits).tolist() == [True, False, False, True, False]
    assert finite_rows(logits[:0]).shape == (0,)


def test_uniform_rows_have_the_bits_of_their_specification(generator: torch.Generator) -> None:
    seeds = torch.randint(-(2**63), 2**63 - 1, (131,), generator=generator)
    positions = torch.randint(0, 2**40, (131,), generator=generator)
    expected = [
        uniform(seed, position)
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    assert uniform_rows(seeds, positions).tolist() == expected
    assert uniform_rows(seeds[:0], positions[:0]).shape == (0,)


def test_refuses_wrong_tensors() -> None:
    with pytest.raises(ShapeError):
        greedy(torch.zeros(3))
    with pytest.raises(DtypeError):
        greedy(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(DtypeError, match="uniform_rows"):
        sample(torch.zeros(1, 3), torch.ones(1), torch.ones(1), torch.zeros(1))
    with pytest.raises(ShapeError):
        uniform_rows(torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
