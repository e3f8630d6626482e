"""Factors on their way to a device: the same numbers, B already by columns."""

import torch

from tenora_engine.core.adapters.host_layout import in_device_layout
from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_kernels.testing import random_module


def test_values_stay_and_the_device_copies_whole_rows() -> None:
    generator = torch.Generator().manual_seed(1)
    module = random_module([3, None], (8, 6), 10, generator=generator)
    given = AdapterWeights("digest", ({"qkv": module, "o": None},), size_bytes=1, total_rank=3)
    layers = in_device_layout(given, pinned=False).layers
    placed = layers[0]["qkv"]
    assert layers[0]["o"] is None
    assert placed is not None
    part, source = placed.slices[0], module.slices[0]
    assert part is not None
    assert source is not None
    assert placed.slices[1] is None
    assert torch.equal(part.lora_a, source.lora_a)
    assert torch.equal(part.lora_b, source.lora_b)
    assert part.lora_b.T.is_contiguous()
    assert part.scaling == source.scaling
