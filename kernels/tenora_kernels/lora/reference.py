"""The specification of batched LoRA: one row at a time, accumulated in float32."""

import torch
from torch import Tensor

from tenora_kernels.lora.plan import LoraPlan
from tenora_kernels.lora.stack import LoraStack


def lora_add_(y: Tensor, x: Tensor, stack: LoraStack, token_adapter: Tensor | LoraPlan) -> None:
    """Add each row's adapter to y.

    Semantics: y[t, slice s] += scaling * (x[t] @ A_s^T) @ B_s^T, A and B of the row's adapter.
    Args: y [T, sum(slice_sizes)]; x [T, in]; token_adapter [T] int64, -1 for none, or a plan.
    Mutates: y, in rows that have an adapter.
    """
    if isinstance(token_adapter, LoraPlan):
        token_adapter = token_adapter.token_adapter
    wide = torch.promote_types(x.dtype, torch.float32)
    for row, index in enumerate(token_adapter.tolist()):
        module = stack.modules[index] if index >= 0 else None
        if module is None:
            continue
        for target, part in zip(
            y[row].split_with_sizes(stack.slice_sizes), module.slices, strict=True
        ):
            if part is not None and part.rank:
                low_rank = part.lora_a.to(stack.dtype).to(wide) @ x[row].to(wide)
                delta = part.lora_b.to(stack.dtype).to(wide) @ (part.scaling * low_rank)
                target.copy_(target.to(wide) + delta)
