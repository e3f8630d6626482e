"""Step times of the engine's core alone, without text, sockets or a client, for each CPU backend.

    python engine/benchmarks/bench_core.py --model-dir DIR --work DIR [--out FILE.json]

Variants are measured in turn in one run, each in a process of its own: `cpu` (torch's products),
`operators` (the native kernels, called one by one), `native` (all layers in one call) and `int8`
(the same with weights rounded to 8 bits). For each number of sequences a prompt is prefilled and
tokens are decoded, for the base model and for eight adapters of mixed ranks in turn.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from report import circumstances
from synthetic_adapters import MIXED_RANKS, adapter_files

from tenora_engine.adapter_files.inspection import AdapterInspector
from tenora_engine.config import EngineConfig
from tenora_engine.core.__main__ import ENVIRONMENT
from tenora_engine.core.core import Core
from tenora_engine.core.factory import build_core
from tenora_engine.core.messages import AbortSequence, AddSequence
from tenora_engine.protocol.messages import InspectRequest

VARIANTS = ("cpu", "operators", "native", "int8")
PROMPT_TOKENS = 128
DECODE_STEPS = 40
WARM_UP_STEPS = 4
MAX_TOKENS = 2 * (WARM_UP_STEPS + DECODE_STEPS)  # none ends while others are still prefilled


def engine_config(model_dir: Path, work: Path, variant: str) -> EngineConfig:
    """A replica whose files are below `work`."""
    for name in ("run", "state", "objects"):
        (work / name).mkdir(parents=True, exist_ok=True)
    return EngineConfig(
        model_dir=model_dir,
        base_model="base",
        run_dir=work / "run",
        state_dir=work / "state",
        object_store_url=f"file://{work / 'objects'}",
        listen_url=f"ipc://{work / 'run' / 'engine.sock'}",
        kernel_backend="cpu" if variant == "cpu" else "native",
        weight_dtype="int8" if variant == "int8" else "auto",
    )


async def install_adapters(config: EngineConfig) -> list[str]:
    """Digests of the mixed adapters, inspected and stored as an upload would be."""
    shapes = json.loads((config.model_dir / "config.json").read_text())
    inspector = AdapterInspector(config)
    store = Path(config.object_store_url.removeprefix("file://"))
    digests = []
    for index, rank in enumerate(MIXED_RANKS):
        folder = store / "incoming" / f"bench{index}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in adapter_files(shapes, rank, seed=index).items():
            (folder / name).write_bytes(content)
        report = await inspector.inspect(InspectRequest(prefix=f"incoming/bench{index}"))
        if report.ref is None:
            raise SystemExit(f"the adapter of rank {rank} was refused: {report.problems}")
        digests.append(report.ref.digest)
    return digests


def measure(core: Core, count: int, adapters: list[str | None]) -> dict[str, float]:
    """Milliseconds of prefilling `count` prompts, and of one decode step of them all."""
    rng = random.Random(time.time_ns())
    names = [f"{time.time_ns()}-{i}" for i in range(count)]
    for i, name in enumerate(names):
        core.handle(_request(name, rng, adapters[i % len(adapters)]))
    started = set[str]()
    begin = time.perf_counter()
    while len(started) < count:
        started |= {output.request_id for output in core.step().sequences if output.token_ids}
    prefill_s = time.perf_counter() - begin
    times = []
    for _ in range(WARM_UP_STEPS + DECODE_STEPS):
        begin = time.perf_counter()
        core.step()
        times.append(time.perf_counter() - begin)
    for name in names:
        core.handle(AbortSequence(request_id=name))
    while core.has_work:
        core.step()
    return {
        "prefill_ms": round(1e3 * prefill_s, 1),
        "decode_step_ms": round(1e3 * statistics.median(times[WARM_UP_STEPS:]), 2),
    }


def _request(name: str, rng: random.Random, adapter: str | None) -> AddSequence:
    return AddSequence(
        request_id=name,
        token_ids=tuple(rng.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)),
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        top_p=1.0,
        seed=0,
        stop_token_ids=(),
        adapter_digest=adapter,
        cache_root=(adapter or "base").encode().ljust(32, b"\0")[:32],
        fairness_key="bench",
        weight=1.0,
        priority=0,
    )


def run_variant(args: argparse.Namespace) -> None:
    """Measure one variant in this process and print JSON."""
    config = engine_config(args.model_dir, args.work, args.variant)
    digests = asyncio.run(install_adapters(config))
    core, ready = build_core(config)
    if args.variant == "operators":
        core._runner._layers = None  # type: ignore[attr-defined]  # noqa: SLF001 - the slow twin
    mixed: list[str | None] = list(digests)
    measure(core, len(mixed), mixed)  # adapters are loaded and packed on first use
    bare: list[str | None] = [None]
    found = [
        {"workload": workload, "sequences": count} | measure(core, count, adapters)
        for count in args.sequences
        for workload, adapters in (("base", bare), ("8 adapters", mixed))
    ]
    core.close()
    print(json.dumps({"weight_dtype": ready.weight_dtype, "cells": found}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="adapters and state go here")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the alternations of every variant, workload and number of sequences."""
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for run in runs:
        for cell in run["cells"]:
            cells.setdefault((run["variant"], cell["workload"], cell["sequences"]), []).append(cell)
    return [
        {
            "variant": variant,
            "workload": workload,
            "sequences": sequences,
            **{
                name: statistics.median(cell[name] for cell in found)
                for name in ("prefill_ms", "decode_step_ms")
            },
        }
        for (variant, workload, sequences), found in cells.items()
    ]


def main() -> None:
    """Run every variant in turn, then print the medians."""
    args = parse()
    if args.variant:
        run_variant(args)
        return
    runs = []
    for _ in range(args.alternations):
        for variant in args.variants:
            command = [sys.executable, __file__, "--variant", variant, "--model-dir"]
            command += [str(args.model_dir), "--work", str(args.work), "--sequences"]
            command += map(str, args.sequences)
            done = subprocess.run(  # noqa: S603 - this file
                command, stdout=subprocess.PIPE, check=True, env={**ENVIRONMENT, **os.environ}
            )
            runs.append({"variant": variant} | json.loads(done.stdout))
    cells = summarise(runs)
    print("| variant | workload | sequences | prefill ms | decode step ms |\n|---|---|---|---|---|")
    for cell in cells:
        print("| " + " | ".join(str(value) for value in cell.values()) + " |")
    if args.out:
        report = {"circumstances": circumstances(), "medians": cells, "runs": runs}
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
