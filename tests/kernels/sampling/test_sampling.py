"""Choosing tokens: exactly the reference's choice, without sorting, row by row."""

import pytest
import torch
from torch import Tensor

from tenora_kernels.sampling import finite_rows, greedy, reference, sample, uniform_rows

pytestmark = pytest.mark.usefixtures("backend")

VOCABULARIES = (1, 63, 512, 2049, 49152)


def _choose(
    logits: Tensor,
    temperature: float,
    top_p: float,
    uniform: Tensor | float,
    *,
    plain: bool = False,
) -> list[int]:
    rows = logits.shape[0]
    function = reference.sample if plain else sample
    return function(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.as_tensor(uniform, dtype=torch.float64).expand(rows),
    ).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_greedy_takes_the_lowest_of_equals(
    vocabulary: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits = torch.randn(9, vocabulary, generator=generator).to(dtype)
    logits[0] = 1.0
    logits[1] = -float("inf")
    logits[2, vocabulary // 3 :: 7] = 50.0
    assert greedy(logits).tolist() == reference.greedy(logits).tolist()
    assert greedy(logits)[:3].tolist() == [0, 0, vocabulary // 3]
    assert greedy(logits[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.95, 0.9999, 1.0])
@pytest.mark.parametrize("sharpness", [0.1, 4.0])
def test_sample_equals_reference(
    vocabulary: int, top_p: float, sharpness: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits = (sharpness * torch.randn(3, vocabulary, generator=generator)).to(dtype)
    for number in (0.0, 0.5, 0.999):
        expected = _choose(logits, 0.8, top_p, number, plain=True)
        assert _choose(logits, 0.8, top_p, number) == expected


def test_sample_follows_the_distribution() -> None:
    p = torch.tensor([0.5, 0.25, 0.15, 0.1])
    logits = p.log().expand(20_000, 4)
    uniform = uniform_rows(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64))
    counts = torch.bincount(torch.tensor(_choose(logits, 1.0, 1.0, uniform)), minlength=4)
    assert torch.allclose(counts / 20_000, p, atol=0.01)
    cut = torch.bincount(torch.tensor(_choose(logits, 1.0, 0.6, uniform)), minlength=4)
    assert torch.allclose(cut / 20_000, torch.tensor([2 / 3, 1 / 3, 0, 0]), atol=0.01)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    almost_one = 1 - 2.0**-53
    assert _choose(logits, 1.0, 0.5, almost_one) == [0]
    assert _choose(logits, 1.0, 0.50001, almost_one) == [1]
    assert _choose(logits, 1.0, 0.75001, almost_one) == [2]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-12])
def test_tiny_temperature_is_greedy(temperature: float, generator: torch.Generator) -> None:
    logits = 100 * torch.randn(5, 512, generator=generator)
    logits[0, :100] = -float("inf")
    for number in (0.0, 0.999):
        assert _choose(logits, temperature, 1.0, number) == greedy(logits).tolist()


def test_masked_tokens_are_never_chosen(generator: torch.Generator) -> None:
    logits = torch.randn(4, 512, generator=generator)
    logits[:, 1:] = -float("inf")
    for number in (0.0, 0.5, 1 - 2.0**-53):
        assert _choose(logits, 2.0, 1.0, number) == [0, 0, 0, 0]


@pytest.mark.parametrize("sharpness", [0.0, 0.1, 30.0])
def test_largest_number_chooses_a_token_that_has_mass(
    sharpness: float, generator: torch.Generator
) -> None:
    logits = sharpness * torch.randn(4, 2048, generator=generator)
    logits[:, ::2] = -float("inf")
    for top_p in (0.999, 1.0):
        for token in _choose(logits, 1.0, top_p, 1 - 2.0**-53):
            assert token % 2 == 1


def test_row_is_independent_of_its_neighbours(generator: torch.Generator) -> None:
    logits = torch.linspace(0.5, 6, 16).unsqueeze(1) * torch.randn(16, 49152, generator=generator)
    uniform = torch.rand(16, generator=generator, dtype=torch.float64)
    together = _choose(logits, 1.0, 1.0, uniform)
    for row in range(16):
        assert _choose(logits[row : row + 1], 1.0, 1.0, uniform[row]) == [together[row]]
    logits[3] = float("nan")
    again = _choose(logits, 1.0, 1.0, uniform)
    assert [c for i, c in enumerate(again) if i != 3] == [
        c for i, c in enumerate(together) if i != 3
    ]
    assert 0 <= again[3] < 49152


def test_empty_batch_gives_empty_result() -> None:
    assert _choose(torch.empty(0, 512), 1.0, 1.0, 0.5) == []


def test_finite_rows_names_the_damaged_ones(generator: torch.Generator) -> None:
    logits = torch.randn(6, 2049, generator=generator)
    assert finite_rows(logits).tolist() == [True] * 6
    logits[1, 5], logits[3, 2048], logits[4, 0] = float("nan"), float("inf"), -float("inf")
    logits[5] = 3e38  # finite, though their sum is not
    assert finite_rows(logits).tolist() == [True, False, True, False, False, True]
    assert finite_rows(logits[:0]).tolist() == []
