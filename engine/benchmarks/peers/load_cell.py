"""Drives one cell in a closed loop and says what came out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from load import Sample
from report import summarise

Send = Callable[[dict[str, Any]], Awaitable[Sample]]


async def run_clients(
    send: Send, bodies: Sequence[dict[str, Any]], concurrency: int
) -> tuple[list[Sample], float]:
    """`load.closed_loop` over any way to send: the samples, and the wall time in seconds."""
    queue = list(reversed(bodies))
    samples: list[Sample] = []

    async def client() -> None:
        while queue:
            samples.append(await send(queue.pop()))

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return samples, time.perf_counter() - started


def row(
    samples: Sequence[Sample], wall_s: float, concurrency: int, *, streams: bool
) -> dict[str, Any]:
    """Throughput; with `streams` also latencies and the two phases of a wave."""
    summary = summarise(samples, wall_s)
    if streams:
        return summary | {"phases": phases(samples, concurrency)}
    return {key: value for key, value in summary.items() if key not in {"ttft_ms", "tpot_ms"}}


def phases(samples: Sequence[Sample], concurrency: int) -> dict[str, float]:
    """Prefill and decode apart, in milliseconds, from the requests that arrived together first.

    `prefill_ms` is the TTFT of the one whose first token came last: all prompts were computed
    by then. `step_ms` is its TPOT: while it decoded, no prompt was computed any more.
    """
    wave = sorted(samples, key=lambda sample: sample.started)[:concurrency]
    last = max(wave, key=lambda sample: sample.first_token)
    return {"prefill_ms": last.ttft_ms, "step_ms": last.tpot_ms or 0.0}
