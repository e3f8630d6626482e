"""Gated activations: silu_mul (Llama, Qwen, Mistral) and gelu_tanh_mul (Gemma)."""

from tenora_kernels.activation import reference
from tenora_kernels.dispatch import Op

silu_mul = Op(
    reference.silu_mul,
    native="tenora_kernels.activation.native:silu_mul",
    triton="tenora_kernels.activation.triton_ops:silu_mul",
)
gelu_tanh_mul = Op(
    reference.gelu_tanh_mul,
    native="tenora_kernels.activation.native:gelu_tanh_mul",
    triton="tenora_kernels.activation.triton_ops:gelu_tanh_mul",
)

__all__ = ["gelu_tanh_mul", "silu_mul"]
