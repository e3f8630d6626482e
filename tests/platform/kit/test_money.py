from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.kit.money import round_half_even


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [
        (1, 2, 0),
        (3, 2, 2),
        (5, 2, 2),
        (-1, 2, 0),
        (-3, 2, -2),
        (499_999, 1_000_000, 0),
        (500_001, 1_000_000, 1),
    ],
)
def test_ties_go_to_the_even_neighbour(numerator: int, denominator: int, expected: int) -> None:
    assert round_half_even(numerator, denominator) == expected


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**12))
def test_agrees_with_exact_fractions(numerator: int, denominator: int) -> None:
    assert round_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


@pytest.mark.parametrize("denominator", [0, -1])
def test_refuses_a_denominator_that_is_not_positive(denominator: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        round_half_even(1, denominator)
