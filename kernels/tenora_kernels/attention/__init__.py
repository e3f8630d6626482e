"""Attention over a paged KV cache; README.md documents the layout of a block."""

from tenora_kernels.attention import cpu, reference
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.dispatch import Op

write_kv = Op(reference.write_kv, cpu.write_kv)
paged_attention = Op(reference.paged_attention, cpu.paged_attention)

__all__ = ["AttentionBatch", "paged_attention", "write_kv"]
