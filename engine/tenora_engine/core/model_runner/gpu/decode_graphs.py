"""The recorded decode steps: one graph for each padded batch size, with and without LoRA.

The graph with LoRA serves any mixture of adapters and rows without one, since slots and lengths
are inputs in device memory. The other is for steps in which no row has an adapter.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tenora_engine.core.model_runner.gpu.step_graph import GraphMaker, StepGraph

FIRST_SIZES = (1, 2, 4)
SIZE_STEP = 8


def padded_sizes(max_rows: int) -> tuple[int, ...]:
    """The batch sizes that are recorded, ascending; the last is `max_rows`."""
    sizes = {*FIRST_SIZES, *range(SIZE_STEP, max_rows, SIZE_STEP)}
    return (*sorted(size for size in sizes if size < max_rows), max_rows)


class DecodeGraphs:
    """Graphs by (padded size, LoRA or not), recorded when first needed or all at once."""

    def __init__(
        self, work: Callable[[int, bool], Tensor], device: torch.device, *, max_rows: int
    ) -> None:
        """`work(size, has_lora)` computes the logits of `size` one-token rows in the buffers."""
        self._work = work
        self._maker = GraphMaker(device)
        self.sizes = padded_sizes(max_rows)
        self._graphs: dict[tuple[int, bool], StepGraph] = {}

    def size_for(self, num_rows: int) -> int:
        """The smallest recorded size that holds `num_rows`."""
        return next(size for size in self.sizes if size >= num_rows)

    def replay(self, size: int, *, has_lora: bool) -> Tensor:
        """Logits `[size, vocab_size]` of what the buffers hold; they live until the next step."""
        key = (size, has_lora)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._maker.make(lambda: self._work(size, has_lora))
        return graph.replay()
