"""The short table at the end: checks in one line each, figures with their shares and targets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_check.records import Record


def print_table(
    circumstances: Mapping[str, Any], records: Sequence[Record], *, wall_s: float, path: Path
) -> None:
    """Print everything a reader needs to see first; the JSON at `path` has the rest."""
    gpu = circumstances["gpu"]
    where = gpu["name"] if gpu else "no GPU: Triton's interpreter, small shapes, times mean nothing"
    print(f"\n{where}; torch {circumstances['torch']}, triton {circumstances['triton']}, "
          f"commit {circumstances['commit'] or 'unknown'}, {wall_s:.0f} s")  # fmt: skip
    checks = [record for record in records if record.is_check]
    good = sum(record.status == "ok" for record in checks)
    print(f"checks: {good} of {len(checks)} right")
    figures = [r for r in records if r.status == "ok" and not (r.is_check or r.is_detail)]
    if figures:
        print(f"\n{'figure':<34}{'shape':<36}{'value':>11} {'unit':<9}{'share':>7}  of / target")
    for record in figures:
        print(_figure_line(record))
    troubles = [record for record in records if record.status != "ok"]
    if troubles:
        print("\nnot ok:")
    for record in troubles:
        last = record.detail.splitlines()[-1] if record.detail else ""
        value = "" if record.value is None else f"error {record.value:.3g}, {record.target}"
        print(f"  {record.status:<8}{record.part}: {record.name} {record.shape} {value}{last}")
    print(f"\nresults: {path}")


def _figure_line(record: Record) -> str:
    share = "" if record.share is None else f"{record.share:.1%}"
    value = 0.0 if record.value is None else record.value
    notes = ", ".join(note for note in (record.share_of, record.target) if note)
    line = f"{record.name:<34}{record.shape:<36}{value:>11.4g} {record.unit:<9}{share:>7}  {notes}"
    return line.rstrip()
