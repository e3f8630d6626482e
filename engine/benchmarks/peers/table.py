"""The report as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def markdown(report: Mapping[str, Any]) -> str:
    """All tables of a report, in the order in which the questions are asked."""
    parts = [_speeds(report), _latencies(report), _floor(report), _api_cost(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _speeds(report: Mapping[str, Any]) -> str:
    labels = report["cells"]
    rows = []
    for name, system in report["systems"].items():
        cells = [_speed(system["cells"].get(label)) for label in labels]
        rows.append([name, str(system["facts"].get("dtype", "")), *cells])
    title = "Output tokens per second, median; in brackets how many times as fast Tenora is.\n\n"
    return title + table(["system", "dtype", *labels], rows)


def _speed(cell: Mapping[str, Any] | None) -> str:
    if cell is None or cell["output_tokens_per_s"] is None:
        return "-"
    ratio = cell["tenora_ratio"]
    return f"{cell['output_tokens_per_s']:.1f}" + (f" ({ratio:.2f})" if ratio is not None else "")


def _latencies(report: Mapping[str, Any]) -> str:
    rows = [
        [name, label, f"{cell['ttft_ms']:.0f}", f"{cell['tpot_ms']:.1f}"]
        for name, system in report["systems"].items()
        for label, cell in system["cells"].items()
        if cell.get("ttft_ms") is not None
    ]
    return table(["system", "cell", "TTFT p50 ms", "TPOT p50 ms"], rows) if rows else ""


def _floor(report: Mapping[str, Any]) -> str:
    rows = [
        [
            label,
            f"{share['prefill_floor_ms']:.0f} / {share['prefill_ms']:.0f}",
            f"{share['prefill_share']:.0%}",
            f"{share['step_floor_ms']:.1f} / {share['step_ms']:.1f}",
            f"{share['step_share']:.0%}",
            f"{share['floor_tokens_per_s']:.0f}",
            f"{share['share']:.0%}",
        ]
        for label, share in report["floor"].items()
    ]
    head = [
        "Tenora", "prefill ms: floor / measured", "share", "decode step ms: floor / measured",
        "share", "floor tok/s", "share over all",
    ]  # fmt: skip
    return table(head, rows) if rows else ""


def _api_cost(report: Mapping[str, Any]) -> str:
    rows = [[label, f"{cost:.1%}"] for label, cost in report["api_cost"].items()]
    head = ["API, quota and billing", "share of the bare engine's throughput"]
    return table(head, rows) if rows else ""
