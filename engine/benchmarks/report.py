"""Percentiles, and where and with what a figure was measured."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from load import Sample

REPOSITORY = Path(__file__).parents[2]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99 by nearest rank."""
    ordered = sorted(values)
    return {
        f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 2)
        for p in (50, 90, 99)
    }


def summarise(samples: Sequence[Sample], wall_s: float) -> dict[str, Any]:
    """Throughput in output tokens per second, TTFT and TPOT in milliseconds."""
    tokens = sum(sample.completion_tokens for sample in samples)
    return {
        "requests": len(samples),
        "wall_s": round(wall_s, 3),
        "output_tokens": tokens,
        "output_tokens_per_s": round(tokens / wall_s, 1),
        "ttft_ms": percentiles([sample.ttft_ms for sample in samples]),
        "tpot_ms": percentiles([s.tpot_ms for s in samples if s.tpot_ms is not None]),
        "cached_prompt_tokens": sum(sample.cached_tokens for sample in samples),
    }


def circumstances() -> dict[str, Any]:
    """Hardware, versions and commit."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the developer's git
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "commit": commit,
    }
