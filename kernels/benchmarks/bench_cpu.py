"""Times every op on this machine's CPU at the shapes of SmolLM2-135M, and prints JSON.

    python kernels/benchmarks/bench_cpu.py [--threads N] [--dtype float32] [--rows 16]

Each figure is the least of many calls. Run it on a quiet machine, after the tests of the ops.
Copies of each weight are called in turn, so that weights come from memory, as they do in a step,
and not from the cache.
"""

import argparse
import json
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch

from tenora_kernels import dispatch
from tenora_kernels.activation import silu_mul
from tenora_kernels.attention import AttentionBatch, paged_attention, write_kv
from tenora_kernels.linear import PackedLinear
from tenora_kernels.lora import LoraPlan, lora_add_, stack_modules
from tenora_kernels.norm import add_rms_norm
from tenora_kernels.rope import apply_rope, build_rope_table
from tenora_kernels.sampling import finite_rows, greedy, sample
from tenora_kernels.testing import random_module

HIDDEN, INTERMEDIATE, VOCABULARY = 576, 1536, 49152
Q_HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
MODULES = {
    "qkv": (HIDDEN, (576, 192, 192)),
    "o": (576, (HIDDEN,)),
    "gate_up": (HIDDEN, (INTERMEDIATE, INTERMEDIATE)),
    "down": (INTERMEDIATE, (HIDDEN,)),
}
ADAPTER_RANKS = (8, 16, 32, 8, 16, 32, 8, 32)
WEIGHT_COPIES = 12
REPEATS = 15


@dataclass(frozen=True)
class Figure:
    """One op at one shape. Rates are of what the op must read, and of the products it must do."""

    op: str
    shape: str
    ms: float
    gb_per_s: float | None = None
    gflop_per_s: float | None = None


def least_ms(*runs: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least time of one of `runs`, which are called in turn."""
    best = float("inf")
    for _ in range(repeats + 1):  # the first round warms up, and is never the least
        for run in runs:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
    return best * 1e3


def _figure(op: str, shape: str, ms: float, read_bytes: int = 0, flops: int = 0) -> Figure:
    def rate(amount: int) -> float | None:
        return round(amount / ms / 1e6, 2) if amount else None

    return Figure(op, shape, round(ms, 4), rate(read_bytes), rate(flops))


def linear_figures(rows: int, dtype: torch.dtype) -> Iterator[Figure]:
    shapes = {name: (sum(sizes), size_in) for name, (size_in, sizes) in MODULES.items()}
    shapes["head"] = (VOCABULARY, HIDDEN)
    for name, (size_out, size_in) in shapes.items():
        copies = 1 if name == "head" else WEIGHT_COPIES
        layers = [PackedLinear(torch.randn(size_out, size_in).to(dtype)) for _ in range(copies)]
        x = torch.randn(rows, size_in).to(dtype)
        ms = least_ms(*(partial(layer, x) for layer in layers))
        weight_bytes = size_out * size_in * x.element_size()
        flops = 2 * rows * size_out * size_in
        yield _figure(
            f"linear {name}", f"[{rows}, {size_in}] -> {size_out}", ms, weight_bytes, flops
        )


def lora_figures(rows: int, dtype: torch.dtype) -> Iterator[Figure]:
    adapters = torch.arange(rows) * len(ADAPTER_RANKS) // rows
    plan = LoraPlan(adapters, len(ADAPTER_RANKS))
    generator = torch.Generator().manual_seed(0)
    for name, (size_in, sizes) in MODULES.items():
        modules = [
            random_module([rank] * len(sizes), sizes, size_in, generator=generator, dtype=dtype)
            for rank in ADAPTER_RANKS
        ]
        stacks = [stack_modules(modules, sizes, size_in, dtype) for _ in range(WEIGHT_COPIES)]
        x, y = torch.randn(rows, size_in).to(dtype), torch.randn(rows, sum(sizes)).to(dtype)

        ms = least_ms(*(partial(lora_add_, y, x, stack, plan) for stack in stacks))
        columns = sum(ADAPTER_RANKS) * len(sizes)
        read = (columns * size_in + sum(ADAPTER_RANKS) * sum(sizes)) * 4
        shape = f"[{rows}, {size_in}], {len(ADAPTER_RANKS)} adapters of rank 8 to 32"
        yield _figure(f"lora_add_ {name}", shape, ms, read)
        ms = least_ms(partial(stack_modules, modules, sizes, size_in, dtype))
        yield _figure(f"stack_modules {name}", f"{len(ADAPTER_RANKS)} adapters", ms, read)


def attention_figures(rows: int, dtype: torch.dtype) -> Iterator[Figure]:
    cases = {
        "decode": [(1, random.randint(100, 400)) for _ in range(rows)],
        "decode long": [(1, 1024)] * rows,
        "prefill": [(128, 128)],
        "prefill chunk": [(128, 512)],
    }
    for name, lengths in cases.items():
        needed = [-(-length // BLOCK_SIZE) for _, length in lengths]
        order = random.sample(range(sum(needed)), sum(needed))
        tables = [[order.pop() for _ in range(count)] for count in needed]
        pool = (KV_HEADS, sum(needed), BLOCK_SIZE, HEAD_DIM)
        k_cache, v_cache = (torch.randn(pool).to(dtype) for _ in range(2))
        queries = [query for query, _ in lengths]
        totals = [length for _, length in lengths]
        q = torch.randn(sum(queries), Q_HEADS, HEAD_DIM).to(dtype)
        batch = AttentionBatch.build(queries, totals, tables, BLOCK_SIZE)
        ms = least_ms(partial(paged_attention, q, k_cache, v_cache, batch, scale=0.125))
        kv_bytes = 2 * KV_HEADS * HEAD_DIM * q.element_size() * sum(totals)
        span = f"{min(totals)} to {max(totals)}" if name == "decode" else str(totals[0])
        shape = f"{len(lengths)} sequences of {span}, {queries[0]} queries each"
        yield _figure(f"paged_attention {name}", shape, ms, kv_bytes)
    k = torch.randn(rows, KV_HEADS, HEAD_DIM).to(dtype)
    slots = torch.randperm(rows)
    yield _figure(
        "write_kv", f"[{rows}]", least_ms(lambda: write_kv(k, k, k_cache, v_cache, slots))
    )
    build = least_ms(lambda: AttentionBatch.build([1] * 8, [300] * 8, [[*range(19)]] * 8, 16))
    yield _figure("AttentionBatch.build", "8 sequences of 300", build)


def elementwise_figures(rows: int, dtype: torch.dtype) -> Iterator[Figure]:
    x, residual = torch.randn(2, rows, HIDDEN).to(dtype)
    weight = torch.ones(HIDDEN, dtype=dtype)
    yield _figure(
        "add_rms_norm", f"[{rows}, 576]", least_ms(lambda: add_rms_norm(x, residual, weight, 1e-5))
    )
    heads = torch.randn(rows, Q_HEADS + 2 * KV_HEADS, HEAD_DIM).to(dtype)
    q, k, _ = heads.split_with_sizes([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
    cos, sin = (table[:rows] for table in build_rope_table(HEAD_DIM, rows, 1e5))
    yield _figure("apply_rope", f"[{rows}, 12, 64]", least_ms(lambda: apply_rope(q, k, cos, sin)))
    gate_up = torch.randn(rows, 2 * INTERMEDIATE).to(dtype)
    yield _figure("silu_mul", f"[{rows}, 3072]", least_ms(lambda: silu_mul(gate_up)))


def sampling_figures(rows: int) -> Iterator[Figure]:
    peaked, flat = (width * torch.randn(rows, VOCABULARY) for width in (4.5, 1.0))
    ones, uniform = torch.ones(rows), torch.rand(rows, dtype=torch.float64)
    shape = f"[{rows}, {VOCABULARY}]"
    yield _figure("greedy", shape, least_ms(lambda: greedy(peaked)))
    yield _figure("finite_rows", shape, least_ms(lambda: finite_rows(peaked)))
    for top_p in (0.9, 1.0):
        for name, logits in (("peaked", peaked), ("flat", flat)):
            ms = least_ms(partial(sample, logits, ones, ones * top_p, uniform))
            yield _figure(f"sample {name} top_p {top_p}", shape, ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rows", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    random.seed(0)
    dtype = getattr(torch, arguments.dtype)
    with torch.inference_mode():
        figures = [
            *linear_figures(arguments.rows, dtype),
            *lora_figures(arguments.rows, dtype),
            *attention_figures(arguments.rows, dtype),
            *elementwise_figures(arguments.rows, dtype),
            *sampling_figures(arguments.rows),
        ]
    report = {
        "hardware": {
            "cpu": torch.cpu.get_capabilities().get("cpu_name", platform.processor()),
            "vector": torch.backends.cpu.get_cpu_capability(),
            "threads": arguments.threads,
        },
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "backend": dispatch.active_backend(),
        "dtype": arguments.dtype,
        "figures": [asdict(figure) for figure in figures],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
