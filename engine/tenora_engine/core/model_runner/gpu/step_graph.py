"""Work that is recorded once and replayed: a CUDA graph, or its twin where there is no CUDA.

Both read inputs where they lay when they were made, and overwrite one output at every replay.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP_RUNS = 2


class StepGraph(ABC):
    """`replay()` runs the work on what its inputs hold now; the result lives until the next."""

    @abstractmethod
    def replay(self) -> Tensor:
        """Return the output; its memory is the same in every replay."""


class CapturedGraph(StepGraph):
    """One CUDA graph. Kernels are compiled and libraries warmed up before the capture."""

    def __init__(self, work: Callable[[], Tensor], pool: Any) -> None:
        """Capture `work`, which must not wait for the device; `pool` is shared by all graphs."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_RUNS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # other threads may allocate pinned memory while this one captures
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._output = work()

    def replay(self) -> Tensor:
        """Return the output of one launch of the whole graph, queued on the current stream."""
        self._graph.replay()
        return self._output


class EagerGraph(StepGraph):
    """The same contract without CUDA: the work runs again, into one output."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        self._work = work
        self._output = work().clone()

    def replay(self) -> Tensor:
        """Return the output, overwritten by this run."""
        return self._output.copy_(self._work())


class GraphMaker:
    """Makes graphs of one device; they share the memory that only a running graph needs."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def make(self, work: Callable[[], Tensor]) -> StepGraph:
        """Record `work`, which is run a few times; whatever it mutates must bear that."""
        return EagerGraph(work) if self._pool is None else CapturedGraph(work, self._pool)
