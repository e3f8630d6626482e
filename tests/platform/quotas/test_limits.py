"""Limits are checked when they are made; the cap on unnamed output keeps small limits usable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.quotas.limits import (
    MAX_RATE,
    MAX_VALUE,
    Limit,
    LimitKind,
    capped_output_tokens,
)


def limit(kind: LimitKind = "tokens_per_minute", value: int = 100, **fields: object) -> Limit:
    chosen = {"id": "1", "scope_kind": "project", "scope_id": "p", **fields}
    return Limit(kind=kind, value=value, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"value": -7},
        {"value": MAX_RATE + 1},
        {"kind": "budget", "period": "month", "value": MAX_VALUE + 1},
        {"kind": "budget"},
        {"period": "day"},
        {"burst": 0},
        {"burst": 101},
        {"kind": "concurrency", "burst": 5},
        {"scope_id": "a:b"},
        {"scope_id": ""},
    ],
)
def test_impossible_limits_cannot_be_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"value|period|burst|scope_id"):
        limit(**fields)  # type: ignore[arg-type]


@given(
    prompt=st.integers(0, 10_000),
    wanted=st.integers(1, 10**9),
    values=st.lists(st.integers(1, 20_000), max_size=4),
)
def test_capped_output_fits_the_smallest_limit_or_is_one(
    prompt: int, wanted: int, values: list[int]
) -> None:
    limits = [limit(value=value) for value in values] + [limit("concurrency", 1)]
    output = capped_output_tokens(limits, prompt_tokens=prompt, max_tokens=wanted)
    assert 1 <= output <= wanted
    if values and output > 1:
        assert prompt + output <= min(values)
    if not values:
        assert output == wanted
