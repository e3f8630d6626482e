"""Medians, ratios and shares, from rows of visits."""

from typing import Any

import pytest
from load import Sample
from peers.cells import Amount, Cell
from peers.floor import Rates, Shape
from peers.load_cell import phases, row
from peers.medians import median_ratio, median_speed
from peers.summary import Results, api_cost, floor_shares, median_rates, summarise_cell
from peers.table import markdown

CELL = Cell("base", 1)


def visit_row(speed: float) -> dict[str, Any]:
    return {
        "output_tokens_per_s": speed,
        "ttft_ms": {"p50": 1e3 / speed},
        "tpot_ms": {"p50": 10.0},
        "phases": {"prefill_ms": 20.0, "step_ms": 8.0},
    }


def results(**speeds: list[float]) -> Results:
    rows = {
        name.replace("_", "-"): {CELL.label: {v: visit_row(s) for v, s in enumerate(values)}}
        for name, values in speeds.items()
    }
    return Results(rows)


def sample(started: float, first: float, finished: float, tokens: int = 11) -> Sample:
    return Sample(started, first, finished, tokens, 0)


def test_ratio_pairs_visits_of_one_alternation() -> None:
    """The machine halves its speed half way; a ratio of medians would say 1.5."""
    ours, theirs = {0: 40.0, 1: 30.0, 2: 10.0}, {0: 20.0, 1: 10.0, 2: 5.0}
    assert median_ratio(ours, theirs) == 2.0
    assert median_speed(ours) == 30.0


def test_ratio_uses_only_visits_that_both_have() -> None:
    assert median_ratio({0: 6.0, 1: 8.0}, {1: 4.0, 2: 1.0}) == 2.0


def test_nothing_measured_gives_no_figure() -> None:
    assert median_ratio({0: 1.0}, {}) is None
    assert median_speed({}) is None


def test_a_cell_carries_its_ratio_and_all_its_visits() -> None:
    cell = summarise_cell(results(tenora=[30, 20, 40], vllm=[10, 10, 10]), "vllm", CELL.label)
    assert (cell["output_tokens_per_s"], cell["tenora_ratio"]) == (10, 3)
    assert [one["visit"] for one in cell["visits"]] == [0, 1, 2]


def test_the_api_costs_what_the_bare_engine_is_faster_by() -> None:
    found = api_cost(results(tenora=[95, 90, 97], tenora_engine=[100, 100, 100]), CELL.label)
    assert found == pytest.approx(0.05)
    assert api_cost(results(tenora=[95]), CELL.label) is None


def test_phases_come_from_the_request_whose_first_token_came_last() -> None:
    wave = [sample(0.0, 1.0, 3.0), sample(0.0, 2.0, 4.0), sample(2.5, 9.0, 9.5)]
    found = phases(wave, concurrency=2)
    assert found == {"prefill_ms": pytest.approx(2000), "step_ms": pytest.approx(200)}


def test_a_system_that_does_not_stream_has_no_latencies() -> None:
    found = row([sample(0.0, 1.0, 1.0)], 1.0, 1, streams=False)
    assert found["output_tokens_per_s"] == 11.0
    assert not found.keys() & {"ttft_ms", "tpot_ms", "phases"}


def test_shares_of_the_floor() -> None:
    shape = Shape(num_layers=1, hidden=2, inner=3, q=2, kv=1, vocab=5)
    rates = Rates(read_bytes_per_s=1e6, flops_per_s=1e6, element_bytes=4)
    amount = Amount(prompt_tokens=4, output_tokens=3, rounds=1)
    found = floor_shares(results(tenora=[100, 50, 200]), CELL, amount, shape, rates)
    assert found is not None
    assert found["prefill_share"] == pytest.approx(found["prefill_floor_ms"] / 20)
    assert found["step_share"] == pytest.approx(found["step_floor_ms"] / 8)
    assert found["share"] == pytest.approx(100 / found["floor_tokens_per_s"])


def test_rates_are_medians_in_the_dtype_that_is_served() -> None:
    measured = [
        {"read_bytes_per_s": speed, "flops_per_s": {"float32": 10 * speed, "bfloat16": 40 * speed}}
        for speed in (1.0, 3.0, 2.0)
    ]
    assert median_rates(measured, "bfloat16") == Rates(2.0, 80.0, 2)
    assert median_rates(measured, "float32") == Rates(2.0, 20.0, 4)


def test_table_shows_a_dash_where_a_system_cannot_serve() -> None:
    found = results(tenora=[30], vllm=[10])
    cells = {
        name: {CELL.label: summarise_cell(found, name, CELL.label)} for name in ("tenora", "vllm")
    }
    report = {
        "cells": [CELL.label, "mixed adapters, c16"],
        "systems": {name: {"facts": {"dtype": "float32"}, "cells": cells[name]} for name in cells},
        "floor": {},
        "api_cost": {CELL.label: 0.031},
    }
    text = markdown(report)
    assert "| vllm | float32 | 10.0 (3.00) | - |" in text
    assert "| base, c1 | 3.1% |" in text
