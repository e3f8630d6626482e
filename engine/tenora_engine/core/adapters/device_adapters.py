"""Adapter factors on the device: a pool for each fused product, and the plan of a step's rows.

All memory is there from the start and never moves, so recorded steps keep their pointers. Which
adapter is at which `lora_index`, and for how long, is decided by `device_residency.py`.
"""

from typing import Any, cast

import torch

from tenora_engine.core.adapters.weights import FUSED_TARGETS, AdapterWeights, product_shapes
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.transformer import LayerLora
from tenora_kernels.lora import LoraPlan
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import PAGE_ROWS, LoraPool


class DeviceAdapters:
    """Room for `num_slots` adapters whose ranks sum up to `capacity_ranks` in each projection.

    `load` may run beside a step that does not use its place. The others may not run beside
    `load`.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_slots: int,
        capacity_ranks: int,
        max_rank: int,
        max_tokens: int,
    ) -> None:
        shapes = product_shapes(config)
        self.max_rank = max_rank
        self._device = device
        self._pools = [
            {
                product: LoraPool(*shape, num_slots, capacity_ranks, max_rank, dtype, device)
                for product, shape in shapes.items()
            }
            for _ in range(config.num_layers)
        ]
        # the op of the bound backend takes pools and their plans where the CPU's takes stacks
        self.layers = tuple(LayerLora(**cast("dict[str, Any]", pools)) for pools in self._pools)
        every_pool = [pool for pools in self._pools for pool in pools.values()]
        self._plan = DeviceLoraPlan(every_pool, max_tokens)
        self._logit_plan = DeviceLoraPlan(every_pool, max_tokens, workspace=self._plan.workspace)
        self._num_pages = every_pool[0].capacity_ranks // PAGE_ROWS
        self._used_pages = [0] * (config.num_layers * sum(map(len, FUSED_TARGETS.values())))
        self._pages_of: dict[int, list[int]] = {}
        self._copies = _stream(device) if device.type == "cuda" else None

    def plan(self, token_lora_index: torch.Tensor) -> LoraPlan:
        """Plan the rows of a step: `lora_index` of each, int32 [T] on the device. Never waits."""
        return _planned(self._plan, token_lora_index)

    def logit_plan(self, token_lora_index: torch.Tensor) -> LoraPlan:
        """The same for the rows with logits, beside `plan`'s and with its workspace."""
        return _planned(self._logit_plan, token_lora_index)

    def fits(self, weights: AdapterWeights) -> bool:
        """Whether every projection has the free pages that the adapter needs."""
        return all(
            needed + used <= self._num_pages
            for needed, used in zip(_pages(weights), self._used_pages, strict=True)
        )

    def load(self, lora_index: int, weights: AdapterWeights) -> None:
        """Put an adapter at a place that no step under way uses; returns when it is there.

        The copies have a stream of their own, which starts after all that was queued so far.
        Raises:
            KernelError: a rank above `max_rank`, or too few free pages; the place is then empty.
        """
        if self._copies is None:
            self._load(lora_index, weights)
            return
        self._copies.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._copies):
            self._load(lora_index, weights)
        self._copies.synchronize()

    def _load(self, lora_index: int, weights: AdapterWeights) -> None:
        self.unload(lora_index)
        try:
            for pools, modules in zip(self._pools, weights.layers, strict=True):
                for product, module in modules.items():
                    if module is not None:
                        pools[product].load(lora_index, module)
        except Exception:
            self._unload_pools(lora_index)
            raise
        self._pages_of[lora_index] = pages = _pages(weights)
        self._used_pages = [a + b for a, b in zip(self._used_pages, pages, strict=True)]

    def unload(self, lora_index: int) -> None:
        """Free a place and its pages; rows that name it would be base rows. Idempotent."""
        pages = self._pages_of.pop(lora_index, None)
        if pages is not None:
            self._unload_pools(lora_index)
            self._used_pages = [a - b for a, b in zip(self._used_pages, pages, strict=True)]

    def _unload_pools(self, lora_index: int) -> None:
        for pools in self._pools:
            for pool in pools.values():
                pool.unload(lora_index)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _planned(plan: DeviceLoraPlan, token_lora_index: torch.Tensor) -> LoraPlan:
    plan.assign(token_lora_index)
    return cast("LoraPlan", plan)


def _pages(weights: AdapterWeights) -> list[int]:
    """Pages that an adapter takes in each projection of each layer."""
    pages = []
    for modules in weights.layers:
        for product, targets in FUSED_TARGETS.items():
            module = modules[product]
            slices = module.slices if module is not None else (None,) * len(targets)
            pages += [-(-part.rank // PAGE_ROWS) if part is not None else 0 for part in slices]
    return pages
