"""From rows of single visits to the report: medians, ratios, shares of the floor, API cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from peers.cells import Amount, Cell
from peers.floor import Rates, Shape, floor_of
from peers.medians import median_ratio, median_speed

Visits = Mapping[int, Mapping[str, Any]]
"""Rows of one system and cell, by visit."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OURS, BARE = "tenora", "tenora-engine"


@dataclass(frozen=True)
class Results:
    """All rows: system, then cell label, then visit."""

    rows: Mapping[str, Mapping[str, Visits]]

    def visits(self, system: str, label: str) -> Visits:
        """Empty where nothing was measured."""
        return self.rows.get(system, {}).get(label, {})

    def speeds(self, system: str, label: str) -> dict[int, float]:
        """Output tokens per second by visit."""
        return {v: row["output_tokens_per_s"] for v, row in self.visits(system, label).items()}


def summarise_cell(results: Results, system: str, label: str) -> dict[str, Any]:
    """What the table shows of one cell, and every visit's row."""
    speeds = results.speeds(system, label)
    visits = results.visits(system, label)
    return {
        "output_tokens_per_s": median_speed(speeds),
        "tenora_ratio": median_ratio(results.speeds(OURS, label), speeds),
        "ttft_ms": _median_of(visits, "ttft_ms"),
        "tpot_ms": _median_of(visits, "tpot_ms"),
        "visits": [dict(visits[visit], visit=visit) for visit in sorted(visits)],
    }


def _median_of(visits: Visits, field: str) -> float | None:
    values = [row[field]["p50"] for row in visits.values() if field in row]
    return median(values) if values else None


def api_cost(results: Results, label: str) -> float | None:
    """The share of the bare engine's throughput that API, quota and billing take."""
    ratio = median_ratio(results.speeds(OURS, label), results.speeds(BARE, label))
    return None if ratio is None else 1 - ratio


def floor_shares(
    results: Results, cell: Cell, amount: Amount, shape: Shape, rates: Rates
) -> dict[str, float] | None:
    """How much of the floor of the base model Tenora reaches, by phase and over all."""
    visits = results.visits(OURS, cell.label)
    speed = median_speed(results.speeds(OURS, cell.label))
    if speed is None:
        return None
    floor = floor_of(
        shape,
        rates,
        batch=cell.concurrency,
        prompt_tokens=amount.prompt_tokens,
        output_tokens=amount.output_tokens,
    )
    prefill_ms = median(row["phases"]["prefill_ms"] for row in visits.values())
    step_ms = median(row["phases"]["step_ms"] for row in visits.values())
    return {
        "prefill_floor_ms": floor.prefill_s * 1e3,
        "prefill_ms": prefill_ms,
        "prefill_share": floor.prefill_s * 1e3 / prefill_ms,
        "step_floor_ms": floor.step_s * 1e3,
        "step_ms": step_ms,
        "step_share": floor.step_s * 1e3 / step_ms,
        "floor_tokens_per_s": floor.output_tokens_per_s,
        "share": speed / floor.output_tokens_per_s,
    }


def median_rates(measured: list[dict[str, Any]], dtype: str) -> Rates:
    """The machine's rates in the dtype that is served; float32 where that one was not measured."""
    flops = [one["flops_per_s"].get(dtype, one["flops_per_s"]["float32"]) for one in measured]
    return Rates(
        median(one["read_bytes_per_s"] for one in measured), median(flops), ELEMENT_BYTES[dtype]
    )
