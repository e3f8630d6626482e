"""Batched LoRA on a GPU: shrink, then expand, over the tiles of a `DeviceLoraPlan`.

Work follows live rows times live ranks: tiles that are not needed and ranks that an adapter does
not have cost nothing but an empty program. No atomics; every sum has one order.
"""

from math import gcd

import torch
from torch import Tensor

from tenora_kernels.errors import DtypeError, KernelInputError, ShapeError
from tenora_kernels.lora.compile_cases import COMPILE_CASES
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import PAGE_ROWS, LoraPool, pool_of_stack
from tenora_kernels.lora.plan import LoraPlan
from tenora_kernels.lora.stack import LoraStack
from tenora_kernels.lora.tiling import (
    block_inputs,
    block_rank,
    expand_stages,
    num_planes,
    split_size,
    sums_stride,
)
from tenora_kernels.lora.triton_kernels import expand_kernel, shrink_kernel

__all__ = ["COMPILE_CASES", "lora_add_", "lora_expand_", "lora_shrink"]

MAX_ALIGNED = 16
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def lora_add_(
    y: Tensor,
    x: Tensor,
    stack: LoraStack | LoraPool,
    token_adapter: Tensor | LoraPlan | DeviceLoraPlan,
) -> None:
    """Add each row's adapter to y: two launches, none where the plan is base only.

    Semantics: y[t, slice s] += scaling * (x[t] @ A_s^T) @ B_s^T, A and B of the row's adapter;
    then, where the pool has them, out_scale * y + out_bias.
    Sums are float32. A row's result depends on its own x, y and adapter only, bit for bit; a
    non-finite adapter reaches no row but its own. Nothing waits for the GPU, so it can be
    captured in a graph.
    Args: y [T, sum(slice_sizes)] and x [T, in], rows may lie apart; a pool and a plan made with
    it. A stack, or rows that are not planned, are placed and planned for this call: for trials.
    Mutates: y, in rows that have an adapter; the plan's workspace.
    Raises:
        ShapeError, DtypeError, KernelInputError: tensors that do not fit pool or plan.
    Reference: `reference.lora_add_`; Punica (arXiv:2310.18547), S-LoRA (arXiv:2311.03285).
    """
    pool = pool_of_stack(stack, x.device) if isinstance(stack, LoraStack) else stack
    plan = _planned(token_adapter, pool)
    lora_shrink(x, pool, plan)
    lora_expand_(y, pool, plan)


def lora_shrink(x: Tensor, pool: LoraPool, plan: DeviceLoraPlan) -> None:
    """Leave every row's rank sums in the plan's workspace; may run beside the base product.

    Semantics: sums[t, s] = x[t] @ A_s^T. The workspace holds one module's sums: the next shrink
    must come after this one's `lora_expand_`.
    """
    _check(x, pool.in_features, pool, plan)
    if plan.is_base_only:
        return
    tiling = plan.tiling
    size = split_size(pool.in_features)
    planes = num_planes(pool.in_features, is_split=tiling.is_split)
    splits = num_planes(pool.in_features, is_split=not tiling.is_split)
    shrink_kernel[(plan.num_tiles, len(pool.slice_sizes), planes)](
        x,
        pool.lora_a,
        pool.table,
        plan.rows,
        plan.tiles,
        plan.workspace,
        plan.num_tokens,
        splits,
        pool.in_features,
        x.stride(0),
        pool.capacity_ranks,
        pool.table.shape[2],
        sums_stride(pool.max_rank),
        SPLIT_SIZE=size,
        TILE_ROWS=tiling.tile_rows,
        BLOCK_R=block_rank(pool.max_rank),
        BLOCK_K=block_inputs(x.dtype, tiling.tile_rows),
        PAGE_ROWS=PAGE_ROWS,
        num_warps=tiling.num_warps,
        num_stages=3,
        enable_fp_fusion=True,
    )


def lora_expand_(y: Tensor, pool: LoraPool, plan: DeviceLoraPlan) -> None:
    """Add what `lora_shrink` left, times B, to y; all slices in one launch.

    Semantics: y[t, slice s] += scaling * sums[t, s] @ B_s^T, then out_scale * y + out_bias.
    Mutates: y, in rows that have an adapter.
    """
    _check(y, sum(pool.slice_sizes), pool, plan)
    if plan.is_base_only:
        return
    tiling = plan.tiling
    out_tiles = pool.out_tiles[tiling.block_n]
    expand_kernel[(plan.num_tiles, out_tiles.shape[0])](
        y,
        plan.workspace,
        pool.lora_b,
        pool.table,
        plan.rows,
        plan.tiles,
        out_tiles,
        pool.slice_sizes_on_device,
        pool.out_scale,
        pool.out_bias,
        plan.num_tokens,
        len(pool.slice_sizes),
        y.shape[1],
        y.stride(0),
        pool.table.shape[2],
        sums_stride(pool.max_rank),
        NUM_PLANES=num_planes(pool.in_features, is_split=tiling.is_split),
        TILE_ROWS=tiling.tile_rows,
        BLOCK_R=block_rank(pool.max_rank),
        BLOCK_N=tiling.block_n,
        PAGE_ROWS=PAGE_ROWS,
        ALIGNED=gcd(*pool.slice_sizes, MAX_ALIGNED),
        num_warps=tiling.num_warps,
        num_stages=expand_stages(tiling.tile_rows),
        enable_fp_fusion=True,
    )


def _planned(token_adapter: Tensor | LoraPlan | DeviceLoraPlan, pool: LoraPool) -> DeviceLoraPlan:
    if isinstance(token_adapter, DeviceLoraPlan):
        return token_adapter
    if isinstance(token_adapter, LoraPlan):
        token_adapter = token_adapter.token_adapter
    plan = DeviceLoraPlan([pool], max(token_adapter.numel(), 1))
    plan.assign(token_adapter)
    return plan


def _check(rows: Tensor, features: int, pool: LoraPool, plan: DeviceLoraPlan) -> None:
    if rows.shape != (plan.num_tokens, features) or rows.stride(1) != 1:
        raise ShapeError(
            f"expected rows of {(plan.num_tokens, features)} with neighbouring columns, got "
            f"{tuple(rows.shape)} of strides {rows.stride()}"
        )
    if rows.dtype != pool.dtype or rows.dtype not in DTYPES:
        raise DtypeError(f"rows are {rows.dtype}, the pool {pool.dtype}; use one of {DTYPES}")
    if plan.num_adapters != pool.num_adapters:
        raise KernelInputError(
            f"the plan is for {plan.num_adapters} adapters, the pool holds {pool.num_adapters}"
        )
    planes = num_planes(pool.in_features, is_split=plan.tiling.is_split)
    needed = planes * len(pool.slice_sizes) * plan.num_tokens * sums_stride(pool.max_rank)
    if plan.workspace.numel() < needed:
        raise ShapeError(
            f"the plan's workspace has {plan.workspace.numel()} floats, this pool needs {needed}; "
            "make the plan with every pool"
        )
