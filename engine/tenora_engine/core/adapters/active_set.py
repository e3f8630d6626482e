"""The active adapters of a step, stacked per layer for the batched-LoRA products.

Stacking copies weights, so a stack is kept for as long as it covers the adapters that a step
needs without carrying too much that it does not; a row's result is the same either way.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from tenora_engine.core.adapters.weights import FUSED_TARGETS, AdapterWeights, product_shapes
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.transformer import LayerLora
from tenora_kernels.lora import LoraStack, stack_modules

MAX_WASTE = 1.5
"""A stack is rebuilt when its total rank exceeds that of the needed adapters by this factor."""


@dataclass(frozen=True, slots=True)
class StackedAdapters:
    """One stack per layer and product, and each digest's index in it."""

    index: dict[str, int]
    layers: tuple[LayerLora, ...]
    total_rank: int


class ActiveSet:
    """Keeps the current `StackedAdapters`. Not thread-safe."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        weights_of: Callable[[str], AdapterWeights],
    ) -> None:
        self._dtype = dtype
        self._weights_of = weights_of
        self._current: StackedAdapters | None = None
        self._shapes = product_shapes(config)

    def covering(self, digests: Iterable[str]) -> StackedAdapters | None:
        """Stacks that hold all of `digests`; None when there are none."""
        needed = sorted(set(digests))
        if not needed:
            return None
        current = self._current
        weights = [self._weights_of(digest) for digest in needed]
        rank = sum(adapter.total_rank for adapter in weights)
        if (
            current is None
            or any(digest not in current.index for digest in needed)
            or current.total_rank > MAX_WASTE * rank
        ):
            current = self._stack(weights, rank)
            self._current = current
        return current

    def _stack(self, weights: list[AdapterWeights], rank: int) -> StackedAdapters:
        layers = tuple(
            LayerLora(
                **{product: self._stack_product(weights, i, product) for product in FUSED_TARGETS}
            )
            for i in range(len(weights[0].layers))
        )
        index = {adapter.digest: i for i, adapter in enumerate(weights)}
        return StackedAdapters(index=index, layers=layers, total_rank=rank)

    def _stack_product(
        self, weights: list[AdapterWeights], layer: int, product: str
    ) -> LoraStack | None:
        modules = [adapter.layers[layer][product] for adapter in weights]
        if all(module is None for module in modules):
            return None
        slice_sizes, in_features = self._shapes[product]
        return stack_modules(modules, slice_sizes, in_features, self._dtype)
