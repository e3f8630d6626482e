"""Rotary position embedding on a GPU. Free of host syncs: may be captured in a graph."""

import torch
import triton
from torch import Tensor

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.errors import ShapeError
from tenora_kernels.rope.triton_kernels import rope_kernel

BLOCK_HEADS = 8
NUM_WARPS = 2


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return rotated `(q, k)` as new contiguous tensors; see `reference.apply_rope`.

    Products and sums are float32 and rounded once; the reference rounds each product.
    Args: q [T, Hq, D] and k [T, Hkv, D] may be strided by token and head; cos, sin [T, D].
    Raises:
        ShapeError: tensors that do not fit together.
    """
    tokens, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if k.shape != (tokens, kv_heads, head_dim) or cos.shape != (tokens, head_dim):
        raise ShapeError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and cos {tuple(cos.shape)} do not agree"
        )
    if sin.shape != cos.shape or head_dim % 2:
        raise ShapeError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} hold two halves each")
    q, k, cos, sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, cos, sin))
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens == 0:
        return q_out, k_out
    num_blocks = triton.cdiv(q_heads, BLOCK_HEADS) + triton.cdiv(kv_heads, BLOCK_HEADS)
    rope_kernel[(tokens, num_blocks)](
        q,
        k,
        cos,
        sin,
        q_out,
        k_out,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        cos.stride(0),
        sin.stride(0),
        q_heads,
        kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HEADS=BLOCK_HEADS,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return q_out, k_out


def _case(name: str, head_dim: int) -> CompileCase:
    tensors = dict.fromkeys(("q", "k", "q_out", "k_out"), "*bf16")
    strides = (
        "q_stride_token",
        "q_stride_head",
        "k_stride_token",
        "k_stride_head",
        "cos_stride",
        "sin_stride",
    )
    return CompileCase(
        name,
        rope_kernel,
        tensors
        | {"cos": "*fp32", "sin": "*fp32"}
        | dict.fromkeys((*strides, "q_heads", "kv_heads"), "i32"),
        {
            "HEAD_DIM": head_dim,
            "BLOCK_HEADS": BLOCK_HEADS,
            "BLOCK_HALF": triton.next_power_of_2(head_dim // 2),
        },
        NUM_WARPS,
        divisible_by_16=strides,
    )


COMPILE_CASES = [_case("apply_rope.8b", 128), _case("apply_rope.smollm2", 64)]
