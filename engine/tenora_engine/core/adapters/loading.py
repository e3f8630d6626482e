"""A canonical adapter file becomes `AdapterWeights`: dtype and fusion in one place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from tenora_engine.adapter_files.canonical import CanonicalModule, read_canonical
from tenora_engine.core.adapters.weights import FUSED_TARGETS, AdapterWeights, product_shapes
from tenora_engine.core.models.config import ModelConfig
from tenora_kernels.dispatch import active_backend
from tenora_kernels.lora import LoraModule, LoraSlice
from tenora_kernels.lora.native import pack_module
from tenora_kernels.native.library import PackedMemory


def load_adapter(
    path: Path, digest: str, config: ModelConfig, dtype: torch.dtype | None
) -> AdapterWeights:
    """Read a canonical file, whose digest was verified, into tensors of `dtype`.

    None keeps each factor in the dtype of its file.
    Raises:
        AdapterUnavailableError: the file is damaged.
    """
    modules = read_canonical(path).modules
    layers = tuple(
        {
            product: _fused_module(modules, f"layers.{index}", targets, dtype)
            for product, targets in FUSED_TARGETS.items()
        }
        for index in range(config.num_layers)
    )
    slices = [
        piece
        for layer in layers
        for module in layer.values()
        if module is not None
        for piece in module.slices
        if piece is not None
    ]
    return AdapterWeights(
        digest=digest,
        layers=layers,
        size_bytes=sum(s.lora_a.nbytes + s.lora_b.nbytes for s in slices),
        total_rank=sum(s.lora_a.shape[0] for s in slices),
    )


def pack_adapter(weights: AdapterWeights, config: ModelConfig) -> AdapterWeights:
    """Lay the factors out as the native kernels read them, so that no step has to.

    The packed copy lives as long as the modules, and the returned `size_bytes` counts it; under
    other backends nothing is done.
    """
    if active_backend() != "native":
        return weights
    shapes = product_shapes(config)
    memory = PackedMemory(weights.size_bytes)
    for layer in weights.layers:
        for product, module in layer.items():
            if module is not None:
                pack_module(module, shapes[product][0], memory)
    return replace(weights, size_bytes=weights.size_bytes + memory.nbytes)


def _fused_module(
    modules: dict[str, CanonicalModule],
    prefix: str,
    targets: tuple[str, ...],
    dtype: torch.dtype | None,
) -> LoraModule | None:
    found = [modules.get(f"{prefix}.{target}") for target in targets]
    if all(module is None for module in found):
        return None
    return LoraModule(tuple(None if m is None else _slice(m, dtype) for m in found))


def _slice(module: CanonicalModule, dtype: torch.dtype | None) -> LoraSlice:
    return LoraSlice(
        lora_a=_tensor(module.lora_a, module.lora_a_dtype, dtype),
        lora_b=_tensor(module.lora_b, module.lora_b_dtype, dtype),
        scaling=module.scaling,
    )


def _tensor(array: NDArray[Any], stored: str, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if stored == "BF16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(dtype or tensor.dtype, copy=True)  # the file's pages are not kept
