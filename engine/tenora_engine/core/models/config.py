"""What the transformer needs to know of a base model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one decoder-only transformer."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    attention_scale: float
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Output features of q, k and v, which are one fused product."""
        kv_size = self.num_kv_heads * self.head_dim
        return (self.num_q_heads * self.head_dim, kv_size, kv_size)
