"""One adapter in host memory, arranged by layer and fused product."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from tenora_engine.adapter_files.canonical import CanonicalModule, read_canonical
from tenora_engine.core.models.config import ModelConfig
from tenora_kernels.lora import LoraModule, LoraSlice

FUSED_TARGETS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Which projections each fused product of a layer holds, in the order of its output rows."""


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """`layers[i][product]` is one `LoraModule`, or None where the adapter leaves it alone."""

    digest: str
    layers: tuple[dict[str, LoraModule | None], ...]
    size_bytes: int
    total_rank: int
    """Sum of the ranks over all modules: what a token of this adapter costs."""


def load_adapter(
    path: Path, digest: str, config: ModelConfig, dtype: torch.dtype
) -> AdapterWeights:
    """Read a canonical file, whose digest was verified, into tensors of the serving dtype.

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


def _fused_module(
    modules: dict[str, CanonicalModule], prefix: str, targets: tuple[str, ...], dtype: torch.dtype
) -> LoraModule | None:
    found = [modules.get(f"{prefix}.{target}") for target in targets]
    if all(module is None for module in found):
        return None
    return LoraModule(tuple(None if m is None else _slice(m, dtype) for m in found))


def _slice(module: CanonicalModule, dtype: torch.dtype) -> LoraSlice:
    return LoraSlice(
        lora_a=_tensor(module.lora_a, module.lora_a_dtype, dtype),
        lora_b=_tensor(module.lora_b, module.lora_b_dtype, dtype),
        scaling=module.scaling,
    )


def _tensor(array: NDArray[Any], stored: str, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if stored == "BF16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(dtype, copy=True)  # the file's pages are not kept
