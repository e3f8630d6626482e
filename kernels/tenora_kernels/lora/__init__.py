"""Batched LoRA: every row of a step adds its own adapter's low-rank product."""

from tenora_kernels.dispatch import Op
from tenora_kernels.lora import cpu, reference
from tenora_kernels.lora.plan import LoraPlan
from tenora_kernels.lora.stack import LoraModule, LoraSlice, LoraStack, stack_modules

lora_add_ = Op(
    reference.lora_add_,
    cpu.lora_add_,
    native="tenora_kernels.lora.native:lora_add_",
    triton="tenora_kernels.lora.triton_ops:lora_add_",
)

__all__ = ["LoraModule", "LoraPlan", "LoraSlice", "LoraStack", "lora_add_", "stack_modules"]
