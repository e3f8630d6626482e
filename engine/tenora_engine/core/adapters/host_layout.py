"""Host copies of adapter factors as a device takes them: its layout, in memory it reads itself."""

from dataclasses import replace

import torch

from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_kernels.lora import LoraModule, LoraSlice


def in_device_layout(weights: AdapterWeights, *, pinned: bool) -> AdapterWeights:
    """The same factors, B by columns; `pinned` lets copies to a GPU run without the host.

    Done once, on the thread that loads: a copy to the device then rearranges nothing.
    """
    layers = tuple(
        {product: _module(module, pinned) for product, module in layer.items()}
        for layer in weights.layers
    )
    return replace(weights, layers=layers)


def _module(module: LoraModule | None, pinned: bool) -> LoraModule | None:
    if module is None:
        return None
    return LoraModule(tuple(_slice(part, pinned) if part else None for part in module.slices))


def _slice(part: LoraSlice, pinned: bool) -> LoraSlice:
    lora_a = _placed(part.lora_a, pinned)
    lora_b = _placed(part.lora_b.T, pinned).T  # [out, rank], its transpose contiguous
    return LoraSlice(lora_a, lora_b, part.scaling)


def _placed(factor: torch.Tensor, pinned: bool) -> torch.Tensor:
    factor = factor.contiguous()
    return factor.pin_memory() if pinned else factor
