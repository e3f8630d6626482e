"""Attention over a paged KV cache; README.md documents the layout of a block."""

from tenora_kernels.attention import cpu, reference
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.dispatch import Op

write_kv = Op(
    reference.write_kv, cpu.write_kv, triton="tenora_kernels.attention.triton_ops:write_kv"
)
paged_attention = Op(
    reference.paged_attention,
    cpu.paged_attention,
    native="tenora_kernels.attention.native:paged_attention",
    triton="tenora_kernels.attention.triton_ops:paged_attention",
)
rotate_and_store = Op(
    reference.rotate_and_store,
    cpu.rotate_and_store,
    native="tenora_kernels.attention.native:rotate_and_store",
    triton="tenora_kernels.attention.triton_ops:rotate_and_store",
)

__all__ = ["AttentionBatch", "paged_attention", "rotate_and_store", "write_kv"]
