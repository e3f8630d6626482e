"""Closed-loop benchmark over HTTP of a running Tenora: base and mixed adapters.

    make up &
    python engine/benchmarks/bench_http.py --demo-json DATA/demo.json --model-dir DIR --out FILE

Every request has 128 prompt tokens that no cache has seen and up to 64 output tokens. Each
level runs after one warm-up round.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import uvloop
from load import closed_loop
from report import circumstances, summarise
from synthetic_adapters import random_bodies, upload_mixed_adapters


def parse_arguments() -> argparse.Namespace:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo-json", type=Path, required=True, help="DATA/demo.json")
    parser.add_argument("--model-dir", type=Path, required=True, help="the served model's folder")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3, help="requests per client and level")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    return parser.parse_args()


async def run_level(
    arguments: argparse.Namespace, demo: dict[str, Any], models: list[str], concurrency: int
) -> dict[str, Any]:
    """One warm-up round, then the measured rounds."""
    shape = {
        "prompt_tokens": arguments.prompt_tokens,
        "output_tokens": arguments.output_tokens,
    }
    url, key = demo["base_url"], demo["tenants"][0]["api_key"]
    warm_up = random_bodies(models, concurrency, seed=concurrency, **shape)
    await closed_loop(url, key, warm_up, concurrency)
    bodies = random_bodies(models, concurrency * arguments.rounds, seed=1000 + concurrency, **shape)
    return summarise(*await closed_loop(url, key, bodies, concurrency))


def main() -> None:
    """Run all levels, print a table and write the JSON."""
    arguments = parse_arguments()
    demo = json.loads(arguments.demo_json.read_text())
    adapters = upload_mixed_adapters(
        demo["base_url"], demo["tenants"][0]["api_key"], arguments.model_dir
    )
    workloads = {"base": [demo["base_model"]], f"{len(adapters)} adapters": adapters}
    results: dict[str, dict[str, Any]] = {}
    columns = ("workload", "conc", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99")
    print("{:12} {:>4} {:>8} {:>9} {:>8} {:>9} {:>8}".format(*columns))
    for name, models in workloads.items():
        for concurrency in arguments.concurrency:
            row = uvloop.run(run_level(arguments, demo, models, concurrency))
            results.setdefault(name, {})[str(concurrency)] = row
            print(
                f"{name:12} {concurrency:4} {row['output_tokens_per_s']:8} "
                f"{row['ttft_ms']['p50']:9} {row['ttft_ms']['p99']:8} "
                f"{row['tpot_ms']['p50']:9} {row['tpot_ms']['p99']:8}"
            )
    report = {
        "benchmark": "bench_http",
        "units": {"ttft_ms": "ms", "tpot_ms": "ms", "output_tokens_per_s": "tokens/s"},
        "shape": {
            "prompt_tokens": arguments.prompt_tokens,
            "output_tokens": arguments.output_tokens,
            "rounds": arguments.rounds,
        },
        "circumstances": circumstances(),
        "results": results,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
