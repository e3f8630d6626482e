"""Uniform numbers: fixed for ever, the same in both forms, and evenly spread."""

import pytest
import torch

from tenora_kernels.sampling import uniform, uniform_rows

PINNED = [0.6524484863740322, 0.7012121095215252, 0.36818951565166946, 0.5832671643096138]
SEEDS = (0, 1, 42, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1)


def test_numbers_are_what_they_always_were() -> None:
    # a change here changes the answer of every seeded request ever made
    assert [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**63 + 5, 7)] == PINNED


@pytest.mark.parametrize("seed", SEEDS)
def test_vectorised_form_is_bit_identical(seed: int) -> None:
    positions = [0, 1, 2, 1000, 2**40]
    signed = (seed + 2**63) % 2**64 - 2**63
    got = uniform_rows(torch.full((5,), signed), torch.tensor(positions))
    assert got.dtype == torch.float64
    assert got.tolist() == [uniform(seed, position) for position in positions]


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


def test_numbers_are_evenly_spread_over_seeds_and_positions() -> None:
    seeds, positions = torch.meshgrid(torch.arange(200), torch.arange(500), indexing="ij")
    numbers = uniform_rows(seeds.flatten(), positions.flatten())
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert len(set(numbers.tolist())) == 100_000
    counts = torch.histc(numbers.float(), bins=100, min=0, max=1)
    # chi-squared with 99 degrees of freedom: 149 is exceeded once in a thousand seeds
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 149
    grid = numbers.view(200, 500)
    assert abs(float(torch.corrcoef(grid[:, :2].T)[0, 1])) < 0.25
    assert abs(float(torch.corrcoef(grid[:2])[0, 1])) < 0.2
