"""What this GPU can do at most: copy bandwidth and the rate of its matrix products."""

from dataclasses import dataclass

import torch

from gpu_check.records import Recorder
from gpu_check.shapes import Shapes
from gpu_check.timing import Timer


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured, not from a data sheet."""

    copy_bytes_per_s: float
    flop_per_s: float


def copy_rate(shapes: Shapes, device: torch.device, timer: Timer) -> float:
    """Bytes per second of a large copy, each byte counted twice: read and written."""
    source = torch.empty(shapes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = timer.ms(lambda: target.copy_(source), flush=False)
    return 2 * shapes.copy_bytes / ms * 1e3


def matrix_rate(shapes: Shapes, device: torch.device, timer: Timer) -> float:
    """Operations per second of a large square product in the serving dtype."""
    size = shapes.matmul_size
    a, b = (torch.randn(size, size, device=device).to(shapes.dtype) for _ in "ab")
    return 2 * size**3 / timer.ms(lambda: a @ b, flush=False) * 1e3


def measure_rates(recorder: Recorder, shapes: Shapes, device: torch.device, timer: Timer) -> Rates:
    """Both rates, recorded."""
    rates = Rates(copy_rate(shapes, device, timer), matrix_rate(shapes, device, timer))
    dtype = str(shapes.dtype).removeprefix("torch.")
    copied, multiplied = f"{shapes.copy_bytes >> 20} MiB", f"{[shapes.matmul_size] * 3} {dtype}"
    recorder.figure("copy bandwidth", copied, rates.copy_bytes_per_s / 1e9, "GB/s")
    recorder.figure("matrix rate", multiplied, rates.flop_per_s / 1e12, "TFLOP/s")
    return rates
