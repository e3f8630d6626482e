"""Sizes of the checks: those of an 8B model on a GPU, tiny ones for the interpreter."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shapes:
    """One model's shapes, and the batches and contexts that are tried with it."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    batches: tuple[int, ...]
    adapter_counts: tuple[int, ...]
    lora_rank: int
    mixed_ranks: tuple[int, ...]
    context_tokens: int
    prefill_tokens: int
    block_size: int
    dtype: torch.dtype
    copy_bytes: int
    matmul_size: int
    repeats: int
    decode_steps: int

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Output features of q, k and v."""
        kv = self.num_kv_heads * self.head_dim
        return (self.num_q_heads * self.head_dim, kv, kv)

    @property
    def modules(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Input features and output slices of the four fused products of a layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "qkv": (hidden, self.qkv_sizes),
            "o": (self.qkv_sizes[0], (hidden,)),
            "gate_up": (hidden, (inner, inner)),
            "down": (inner, (hidden,)),
        }


REAL = Shapes(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    batches=(1, 32, 128),
    adapter_counts=(1, 8, 32),
    lora_rank=16,
    mixed_ranks=(8, 16, 32, 64, 1, 16, 8, 128),
    context_tokens=1024,
    prefill_tokens=2048,
    block_size=16,
    dtype=torch.bfloat16,
    copy_bytes=1 << 30,
    matmul_size=8192,
    repeats=20,
    decode_steps=8,
)

SMALL = Shapes(
    num_layers=1,
    hidden_size=32,
    intermediate_size=48,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=16,
    vocab_size=96,
    batches=(1, 3),
    adapter_counts=(1, 2),
    lora_rank=4,
    mixed_ranks=(1, 8, 3),
    context_tokens=40,
    prefill_tokens=24,
    block_size=16,
    dtype=torch.float32,
    copy_bytes=1 << 22,
    matmul_size=256,
    repeats=1,
    decode_steps=1,
)
