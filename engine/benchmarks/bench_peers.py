"""Tenora and its peers in one run: same machine, same prompts, same load generator, in turn.

    python engine/benchmarks/bench_peers.py --model-dir DIR --work DIR --out FILE

Peers are installed under `--work` the first time. `peers/README.md` says what is measured, how
each system is set up, and what was chosen where a choice could favour one of them.
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop
from peers.cells import Amount, Cell, cells_for
from peers.files import lay_out
from peers.floor import Shape
from peers.summary import OURS, Results, api_cost, floor_shares, median_rates, summarise_cell
from peers.systems import SYSTEMS, create_systems
from peers.systems.base import Site
from peers.table import markdown
from peers.trials import Trials
from peers.visits import Visitor
from report import circumstances

UNITS = {
    "output_tokens_per_s": "tokens/s", "ttft_ms": "ms", "tpot_ms": "ms", "wall_s": "s",
    "read_bytes_per_s": "bytes/s", "flops_per_s": "floating-point operations/s",
    "tenora_ratio": "Tenora's tokens/s divided by the system's",
}  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--work", type=Path, required=True, help="peers, data and logs go here")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--alternations", type=int, default=3, help="visits to each system")
    parser.add_argument("--rounds", type=int, default=1, help="requests of a client in a visit")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument(
        "--prepare", action="store_true", help="install and try settings, and measure nothing"
    )
    parser.add_argument("--out", type=Path, help="where JSON goes, and Markdown beside it")
    return parser.parse_args()


def make_report(
    arguments: argparse.Namespace, site: Site, visitor: Visitor, trials: Trials
) -> dict[str, Any]:
    """Everything that was measured so far, and how."""
    results, cells = Results(visitor.rows), cells_for(arguments.concurrency)
    amount = make_amount(arguments)
    shape = Shape.of(json.loads((site.model_dir / "config.json").read_text()))
    rates = median_rates(visitor.machine, visitor.facts.get(OURS, {}).get("dtype", "float32"))
    floors = {c.label: floor_shares(results, c, amount, shape, rates) for c in cells}
    costs = {c.label: api_cost(results, c.label) for c in cells}
    return {
        "benchmark": "bench_peers",
        "units": UNITS,
        "shape": {
            name: getattr(arguments, name)
            for name in ("alternations", "rounds", "prompt_tokens", "output_tokens", "concurrency")
        },
        "circumstances": circumstances(),
        "machine": visitor.machine,
        "cells": [cell.label for cell in cells],
        "systems": {
            name: {
                "facts": facts,
                "cells": {
                    label: summarise_cell(results, name, label)
                    for label in visitor.rows.get(name, {})
                },
            }
            for name, facts in visitor.facts.items()
        },
        "floor": {label: share for label, share in floors.items() if share is not None},
        "api_cost": {label: cost for label, cost in costs.items() if cost is not None},
        "trials": trials.found,
        "failures": visitor.failures,
    }


def make_amount(arguments: argparse.Namespace) -> Amount:
    """How much is sent."""
    return Amount(arguments.prompt_tokens, arguments.output_tokens, arguments.rounds)


def main() -> None:
    """Install, run, write after every visit, print the tables."""
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that no server is left behind
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: sys.exit(1))
    site = lay_out(arguments.work, arguments.model_dir, max(arguments.concurrency))
    visitor = Visitor(
        create_systems(arguments.systems, site),
        cells_for(arguments.concurrency),
        make_amount(arguments),
        site.threads,
    )
    visitor.install()
    cell = Cell("base", max(arguments.concurrency))
    trials = Trials(site.work / "trials.json", cell, arguments.prompt_tokens)

    def save() -> None:
        if arguments.out:
            report = make_report(arguments, site, visitor, trials)
            arguments.out.write_text(json.dumps(report, indent=2) + "\n")
            arguments.out.with_suffix(".md").write_text(markdown(report))

    async def choose_and_run() -> None:
        await visitor.choose(trials)
        if not arguments.prepare:
            await visitor.run(arguments.alternations, save)
            print(markdown(make_report(arguments, site, visitor, trials)))

    uvloop.run(choose_and_run())


if __name__ == "__main__":
    main()
