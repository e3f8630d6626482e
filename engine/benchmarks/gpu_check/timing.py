"""Times of device work in milliseconds: CUDA events on a GPU, the clock elsewhere."""

import time
from collections.abc import Callable
from statistics import median

import torch

FLUSH_BYTES = 256 << 20


class Timer:
    """Medians of many calls, each on a cold second-level cache as in a decode step."""

    def __init__(self, device: torch.device, *, repeats: int) -> None:
        self._is_cuda = device.type == "cuda"
        self._repeats = repeats
        self._flush = torch.empty(FLUSH_BYTES if self._is_cuda else 1, dtype=torch.int8).to(device)

    def ms(self, work: Callable[[], object], *, flush: bool = True) -> float:
        """Median of the calls after two that warm up; `flush` overwrites the cache before each."""
        for _ in range(2 if self._is_cuda else 0):
            work()
        return median(self._once(work, flush) for _ in range(self._repeats))

    def _once(self, work: Callable[[], object], flush: bool) -> float:
        if flush:
            self._flush.zero_()
        if not self._is_cuda:
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start) * 1e3
        begin, end = _event(), _event()
        torch.cuda.synchronize()
        # work queued behind a short wait starts without the host's delay between its launches
        torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]  # noqa: SLF001
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def wall_ms(self, work: Callable[[], object]) -> float:
        """Median by the host's clock; `work` itself waits for the device."""
        if self._is_cuda:
            work()
        times = []
        for _ in range(self._repeats):
            start = time.perf_counter()
            work()
            times.append((time.perf_counter() - start) * 1e3)
        return median(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
