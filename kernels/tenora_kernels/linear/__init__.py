"""Products with the base model's frozen weights."""

from tenora_kernels.linear.packed import PackedLinear

__all__ = ["PackedLinear"]
