"""Rotary position embedding: the table of a base model, and its use on q and k."""

from tenora_kernels.dispatch import Op
from tenora_kernels.rope import cpu, reference
from tenora_kernels.rope.rows import RopeRows
from tenora_kernels.rope.table import build_rope_table

apply_rope = Op(
    reference.apply_rope, cpu.apply_rope, triton="tenora_kernels.rope.triton_ops:apply_rope"
)

__all__ = ["RopeRows", "apply_rope", "build_rope_table"]
