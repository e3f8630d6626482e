"""One adapter in host memory, arranged by layer and fused product."""

from dataclasses import dataclass

from tenora_engine.core.models.config import ModelConfig
from tenora_kernels.lora import LoraModule

FUSED_TARGETS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Which projections each fused product of a layer holds, in the order of its output rows."""


def product_shapes(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], int]]:
    """Output rows of each projection, and input features, of every fused product of a layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "qkv": (config.qkv_sizes, hidden),
        "o": ((hidden,), config.qkv_sizes[0]),
        "gate_up": ((inner, inner), hidden),
        "down": ((hidden,), inner),
    }


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """`layers[i][product]` is one `LoraModule`, or None where the adapter leaves it alone."""

    digest: str
    layers: tuple[dict[str, LoraModule | None], ...]
    size_bytes: int
    """Host memory that it takes, the packed copy included."""
    total_rank: int
    """Sum of the ranks over all modules: what a token of this adapter costs."""
