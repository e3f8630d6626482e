"""Rating: the formula of cases E12 and E14, one rounding, and what each outcome costs."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.protocol.messages import Outcome, Usage
from tenora_platform.billing.rating import Price, are_countable, rate, rate_outcome
from tenora_platform.kit.clock import SystemClock
from tenora_platform.kit.ids import new_id

PER_TOKEN = 1_000_000
PRICE = Price(
    id=new_id(),
    base_model="base",
    target="base",
    effective_at=SystemClock().now(),
    input_nanousd_per_mtok=10 * PER_TOKEN,
    cached_input_nanousd_per_mtok=1 * PER_TOKEN,
    output_nanousd_per_mtok=20 * PER_TOKEN,
)

tokens = st.integers(0, 10**6)
rates = st.integers(0, 10**12)


@st.composite
def prices(draw: st.DrawFn) -> Price:
    full = draw(rates)
    return msgspec.structs.replace(
        PRICE,
        input_nanousd_per_mtok=full,
        cached_input_nanousd_per_mtok=draw(st.integers(0, full)),
        output_nanousd_per_mtok=draw(rates),
    )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt = draw(tokens)
    return Usage(
        prompt_tokens=prompt,
        cached_prompt_tokens=draw(st.integers(0, prompt)),
        completion_tokens=draw(tokens),
    )


def test_cached_tokens_cost_the_cached_rate_and_the_rest_the_full_rate() -> None:
    usage = Usage(prompt_tokens=100, cached_prompt_tokens=96, completion_tokens=10)
    assert rate(usage, PRICE) == 336


def test_the_known_wrong_formulas_would_be_far_off() -> None:
    charged_twice = 100 * 10 + 96 * 1 + 10 * 20
    never_discounted = 100 * 10 + 10 * 20
    assert min(charged_twice, never_discounted) > 3 * 336


def test_recomputed_tokens_and_preemptions_cost_nothing() -> None:
    plain = Usage(prompt_tokens=50, completion_tokens=18)
    preempted = msgspec.structs.replace(plain, computed_tokens=500, preemptions=3)
    assert rate(preempted, PRICE) == rate(plain, PRICE) == 860


@pytest.mark.parametrize(("prompt_tokens", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_half_a_nano_is_rounded_to_the_even_neighbour(prompt_tokens: int, expected: int) -> None:
    half = msgspec.structs.replace(PRICE, input_nanousd_per_mtok=PER_TOKEN // 2)
    assert rate(Usage(prompt_tokens=prompt_tokens, completion_tokens=0), half) == expected


@given(usages(), prices())
def test_rounds_once_and_from_the_exact_amount(usage: Usage, price: Price) -> None:
    exact = (
        Fraction(usage.prompt_tokens - usage.cached_prompt_tokens) * price.input_nanousd_per_mtok
        + usage.cached_prompt_tokens * price.cached_input_nanousd_per_mtok
        + usage.completion_tokens * price.output_nanousd_per_mtok
    ) / 1_000_000
    assert rate(usage, price) == round(exact)


@given(usages(), prices(), tokens)
def test_no_request_costs_more_than_its_worst_case(usage: Usage, price: Price, unused: int) -> None:
    worst = Usage(
        prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens + unused
    )
    assert 0 <= rate(usage, price) <= rate(worst, price)


@pytest.mark.parametrize(
    "usage",
    [
        Usage(prompt_tokens=10, cached_prompt_tokens=11, completion_tokens=0),
        Usage(prompt_tokens=-1, completion_tokens=0),
        Usage(prompt_tokens=1, cached_prompt_tokens=-1, completion_tokens=0),
        Usage(prompt_tokens=1, completion_tokens=-1),
        Usage(prompt_tokens=1, completion_tokens=1, computed_tokens=-1),
    ],
)
def test_counts_that_cannot_be_true_are_not_rated(usage: Usage) -> None:
    assert not are_countable(usage)
    with pytest.raises(ValueError, match="token counts"):
        rate(usage, PRICE)


@pytest.mark.parametrize(
    ("outcome", "expected"), [("stop", 1200), ("length", 1200), ("aborted", 1200), ("error", 0)]
)
def test_our_faults_are_free_and_an_abort_pays_for_what_was_made(
    outcome: Outcome, expected: int
) -> None:
    assert rate_outcome(outcome, Usage(prompt_tokens=100, completion_tokens=10), PRICE) == expected


def test_a_million_records_of_a_tenth_add_up_exactly() -> None:
    """Case E20: sums of rated amounts are integers, so every breakdown has the same total."""
    tenth = msgspec.structs.replace(PRICE, input_nanousd_per_mtok=100 * PER_TOKEN)
    one = rate(Usage(prompt_tokens=1, completion_tokens=0), tenth)
    assert one == 100
    assert sum(one for _ in range(10**6)) == 10**6 * one
