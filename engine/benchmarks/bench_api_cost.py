"""What API, quota and billing cost: `tenora up` against its bare engine, both up, in turn.

    python engine/benchmarks/bench_api_cost.py --model-dir DIR --work DIR [--out FILE.json]

`bench_peers.py` answers the same in passing, from one short visit per alternation to servers that
were just started. Here both stay up and are visited many times, in the order A B B A, so that a
machine whose speed drifts moves both; and the processor time of every process is counted, which
no neighbour on the machine can change: an idle copy of the other system is all that it includes.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import uvloop
from peers.cells import Amount, Cell
from peers.files import lay_out
from peers.load_cell import row, run_clients
from peers.server import Server
from peers.systems.base import System
from peers.systems.tenora import Tenora
from peers.systems.tenora_engine import TenoraEngine
from peers.table import table
from report import circumstances

ENGINE_ROLES = ("core", "front")
ROLES = {
    "tenora_engine.core": "core",
    "tenora_engine": "front",
    "tenora_platform api": "api",
    "tenora_platform worker": "worker",
    "tenora_platform up": "supervisor",
    "redis-server": "redis",
    "postgres": "postgres",
}
"""Role by what a command line contains; the first that fits counts."""


def role_of(command_line: Sequence[str]) -> str:
    """Which part of Tenora a process is."""
    command = " ".join(command_line)
    return next((role for mark, role in ROLES.items() if mark in command), "other")


def processor_seconds(server: Server) -> dict[str, float]:
    """User and system time of all processes so far, by role."""
    spent: dict[str, float] = {}
    for process in server.processes():
        try:
            times, role = process.cpu_times(), role_of(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        spent[role] = spent.get(role, 0.0) + times.user + times.system
    return spent


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Seconds between two readings, by role; a process that ended in between is left out."""
    return {role: max(0.0, after[role] - before.get(role, 0.0)) for role in after}


def platform_share(spent: Mapping[str, float]) -> float:
    """The part of all processor time that the engine did not take."""
    total = sum(spent.values())
    return 1 - sum(spent.get(role, 0.0) for role in ENGINE_ROLES) / total if total else 0.0


def visits(alternations: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """(alternation, order of the two systems): A B, B A, A B ..."""
    for alternation in range(alternations):
        yield alternation, (0, 1) if alternation % 2 == 0 else (1, 0)


def summarise(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the alternations of one cell."""
    return {
        "tenora_tokens_per_s": median(one["tenora"] for one in measured),
        "bare_tokens_per_s": median(one["tenora-engine"] for one in measured),
        "cost": 1 - median(one["tenora"] / one["tenora-engine"] for one in measured),
        "platform_share_of_processor": median(
            platform_share(one["processor_s"]) for one in measured
        ),
        "alternations": list(measured),
    }


async def measure(
    systems: tuple[Tenora, TenoraEngine], cell: Cell, amount: Amount, alternations: int
) -> dict[str, Any]:
    """One cell."""
    measured: list[dict[str, Any]] = []
    for alternation, order in visits(alternations):
        found: dict[str, Any] = {}
        for index in order:
            system: System = systems[index]
            before = processor_seconds(systems[0].server)
            bodies = amount.bodies(cell, alternation)
            samples, wall_s = await run_clients(system.send, bodies, cell.concurrency)
            speed = row(samples, wall_s, cell.concurrency, streams=True)["output_tokens_per_s"]
            found[system.name] = speed
            if index == 0:
                spent = difference(processor_seconds(systems[0].server), before)
                found["processor_s"] = {role: round(value, 2) for role, value in spent.items()}
            print(f"  {cell.label}: {system.name}: {speed} tok/s", flush=True)
        measured.append(found)
    return summarise(measured)


def markdown(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The table."""
    head = ["cell", "tenora tok/s", "bare engine tok/s", "cost", "processor time beside the engine"]
    rows = [
        [
            label,
            f"{cell['tenora_tokens_per_s']:.1f}",
            f"{cell['bare_tokens_per_s']:.1f}",
            f"{cell['cost']:.1%}",
            f"{cell['platform_share_of_processor']:.1%}",
        ]
        for label, cell in cells.items()
    ]
    return table(head, rows)


def parse_arguments() -> argparse.Namespace:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--work", type=Path, required=True, help="a short path; data and logs")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--alternations", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2, help="requests of a client in a visit")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start both, measure every cell, stop both."""
    site = lay_out(arguments.work, arguments.model_dir, arguments.concurrency)
    systems = (Tenora(site), TenoraEngine(site))
    amount = Amount(arguments.prompt_tokens, arguments.output_tokens, arguments.rounds)
    cells = [Cell("base", arguments.concurrency), Cell("mixed adapters", arguments.concurrency)]
    try:
        for system in systems:
            system.install()
            await system.enter()
            for cell in cells:
                warm_up = amount.warm_up(cell, 0, is_cold=True)
                await run_clients(system.send, warm_up, cell.concurrency)
        return {
            cell.label: await measure(systems, cell, amount, arguments.alternations)
            for cell in cells
        }
    finally:
        for system in systems:
            await system.close()


def main() -> None:
    """Measure, print, write."""
    arguments = parse_arguments()
    cells = uvloop.run(run(arguments))
    print(markdown(cells))
    if arguments.out:
        report = {
            "benchmark": "bench_api_cost",
            "shape": {
                name: getattr(arguments, name)
                for name in (
                    "concurrency", "alternations", "rounds", "prompt_tokens", "output_tokens",
                )
            },
            "circumstances": circumstances(),
            "cells": cells,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
