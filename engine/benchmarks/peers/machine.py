"""Measures what this machine can do, as a program of its own: `python machine.py THREADS`.

Prints JSON: bytes read per second, and floating-point operations per second of a large matrix
product in float32, and in bfloat16 where the processor multiplies it in hardware. Each is the
best of several tries, because everything that disturbs one only makes it slower, and of torch's
product and Tenora's own: a floor that one of them could pass would be none.
"""

import json
import sys
import time
from collections.abc import Callable

import torch

from tenora_kernels.linear.native import NativeProduct
from tenora_kernels.native import library

READ_BYTES = 1 << 30
SIDE = 2048
NATIVE_DEPTH = 512  # a depth at which a panel of our product stays in the first cache
TRIES = 7


def best_s(call: Callable[[], object]) -> float:
    """Seconds of the fastest try, after one that is not counted."""
    call()
    times = []
    for _ in range(TRIES):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def read_bytes_per_s() -> float:
    """The faster of a sum and a matrix-vector product, which is how a decode step reads."""
    memory = torch.ones(READ_BYTES // 4)
    matrix, vector = memory.view(-1, SIDE), torch.ones(SIDE)
    return READ_BYTES / min(best_s(memory.sum), best_s(lambda: torch.mv(matrix, vector)))


def flops_per_s(dtype: torch.dtype) -> float:
    """A square product that is large enough to be bound by arithmetic."""
    a, b = torch.randn(SIDE, SIDE).to(dtype), torch.randn(SIDE, SIDE).to(dtype)
    rates = [2 * SIDE**3 / best_s(lambda: torch.mm(a, b))]
    if library.is_available():
        weight = b[:, :NATIVE_DEPTH].contiguous()
        product = NativeProduct(weight, None, rounds_input=dtype == torch.bfloat16)
        x, y = a[:, :NATIVE_DEPTH].float(), torch.zeros(SIDE, SIDE)
        rates.append(2 * SIDE * SIDE * NATIVE_DEPTH / best_s(lambda: product.add_(y, x)))
    return max(rates)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(int(sys.argv[1]))
    flops = {"float32": flops_per_s(torch.float32)}
    if torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001 - torch has no public name
        flops["bfloat16"] = flops_per_s(torch.bfloat16)
    print(json.dumps({"read_bytes_per_s": read_bytes_per_s(), "flops_per_s": flops}))


if __name__ == "__main__":
    main()
