"""Choosing tokens on a GPU: checks and launches.

Every function is free of host syncs and may be captured in a graph. A row never depends on the
others. Where a row of logits is NaN the choice is some token of the vocabulary.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.sampling import triton_kernels as kernels
from tenora_kernels.sampling.inversion import launch

BLOCK = launch.BLOCK
NUM_WARPS = launch.NUM_WARPS
UNIFORM_BLOCK = 128


def greedy(logits: Tensor) -> Tensor:
    """Return the index of each row's largest logit, the lowest among equals: int64 [N].

    Args: logits [N, V], rows may lie apart.
    """
    logits = _checked(logits)
    choice = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if logits.shape[0] == 0:
        return choice
    best, index = _chunk_best(logits)
    kernels.row_best_kernel[(logits.shape[0],)](
        best,
        index,
        choice,
        best.shape[1],
        BLOCK_CHUNKS=triton.next_power_of_2(best.shape[1]),
        num_warps=1,
        enable_fp_fusion=True,
    )
    return choice


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Return one token per row from the top-p cut distribution; see `reference.sample`.

    The choice is the reference's up to the rounding of its float32 softmax and float64 sums.
    Args: logits [N, V]; temperature, top_p [N] of any float dtype; uniform float64 [N].
    """
    return _sample(logits, temperature, None, top_p, uniform)


def sample_top_k(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
) -> Tensor:
    """Return one token per row, cut by top-k and then top-p; see `top_k_reference.sample_top_k`.

    Args: as `sample`; top_k int64 [N], all where it is not positive.
    """
    return _sample(logits, temperature, top_k, top_p, uniform)


def finite_rows(logits: Tensor) -> Tensor:
    """Return which rows hold neither NaN nor infinity of either sign: bool [N]."""
    logits = _checked(logits)
    is_finite = torch.ones(logits.shape[0], dtype=torch.uint8, device=logits.device)
    if logits.shape[0]:
        kernels.finite_chunk_kernel[_grid(logits)](
            logits,
            is_finite,
            logits.shape[1],
            logits.stride(0),
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=True,
        )
    return is_finite.view(torch.bool)


def uniform_rows(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return `random.uniform` of each row, bit for bit: float64 [N] from two int64 [N]."""
    numbers = torch.empty(seeds.shape, dtype=torch.float64, device=seeds.device)
    if seeds.shape != positions.shape:
        raise ShapeError(f"{tuple(seeds.shape)} seeds and {tuple(positions.shape)} positions")
    if seeds.numel():
        kernels.uniform_kernel[(triton.cdiv(seeds.numel(), UNIFORM_BLOCK),)](
            seeds.contiguous(),
            positions.contiguous(),
            numbers,
            seeds.numel(),
            BLOCK=UNIFORM_BLOCK,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return numbers


def penalise_(
    logits: Tensor,
    counts: Tensor,
    in_prompt: Tensor,
    state_rows: Tensor,
    *,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Lower the logits of tokens that a sequence already has; see `penalty_reference.penalise_`.

    Args: counts and in_prompt contiguous; logits' rows may lie apart.
    Mutates: logits.
    """
    _check_state(counts, logits.shape[1])
    if in_prompt.shape != counts.shape or in_prompt.dtype != torch.bool:
        raise ShapeError(f"in_prompt is bool of counts' shape {tuple(counts.shape)}")
    if _checked(logits) is not logits or not in_prompt.is_contiguous():
        raise ShapeError("logits' columns and the state must be contiguous; call contiguous()")
    if logits.shape[0]:
        kernels.penalise_kernel[_grid(logits)](
            logits,
            counts,
            in_prompt.view(torch.uint8),
            state_rows,
            repetition,
            presence,
            frequency,
            logits.shape[1],
            logits.stride(0),
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=True,
        )


def count_tokens_(counts: Tensor, state_rows: Tensor, tokens: Tensor) -> None:
    """Count each row's token in its state; see `penalty_reference.count_tokens_`.

    Mutates: counts.
    """
    _check_state(counts, counts.shape[1])
    if tokens.shape[0]:
        kernels.count_kernel[(tokens.shape[0],)](
            counts, state_rows, tokens, counts.shape[1], num_warps=1, enable_fp_fusion=True
        )


def _sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor, uniform: Tensor
) -> Tensor:
    logits = _checked(logits)
    if uniform.dtype != torch.float64:
        raise DtypeError(f"uniform is {uniform.dtype}; take it from uniform_rows, in float64")
    if logits.shape[0] == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    best, _ = _chunk_best(logits)
    return launch.Inversion(logits, temperature, best).choose(top_k, top_p, uniform)


def _chunk_best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of every chunk, and its first index."""
    grid = _grid(logits)
    best = torch.empty(grid, dtype=torch.float32, device=logits.device)
    index = torch.empty(grid, dtype=torch.int32, device=logits.device)
    kernels.chunk_best_kernel[grid](
        logits,
        best,
        index,
        logits.shape[1],
        logits.stride(0),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return best, index


def _grid(logits: Tensor) -> tuple[int, int]:
    return logits.shape[0], int(triton.cdiv(logits.shape[1], BLOCK))


def _checked(logits: Tensor) -> Tensor:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ShapeError(f"logits are [N, V] with V > 0, got {tuple(logits.shape)}")
    if not logits.is_floating_point() or logits.dtype.itemsize > 4:
        raise DtypeError(f"logits are {logits.dtype}; cast them to float32 or narrower")
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _check_state(counts: Tensor, vocabulary: int) -> None:
    if counts.dim() != 2 or counts.shape[1] != vocabulary or not counts.is_contiguous():
        raise ShapeError(
            f"counts are contiguous [R, {vocabulary}], got {tuple(counts.shape)} of strides "
            f"{counts.stride()}"
        )
    if counts.dtype != torch.int32:
        raise DtypeError(f"counts are {counts.dtype}; make them int32")


def _case(name: str, kernel: Any, warps: int = NUM_WARPS, **constants: object) -> CompileCase:
    signature = {"logits": "*bf16", "best": "*fp32", "numbers": "*fp64"}
    signature |= dict.fromkeys(("best_index", "counts"), "*i32")
    signature |= dict.fromkeys(("choice", "seeds", "positions", "state_rows", "tokens"), "*i64")
    signature |= dict.fromkeys(("repetition", "presence", "frequency"), "*fp32")
    signature |= dict.fromkeys(("is_finite", "in_prompt"), "*u8")
    signature |= dict.fromkeys(("size", "logits_stride", "num_chunks", "num_rows"), "i32")
    sizes = ("size", "logits_stride")
    return CompileCase(name, kernel, signature, constants, warps, divisible_by_16=sizes)


COMPILE_CASES = [
    _case("chunk_best", kernels.chunk_best_kernel, BLOCK=BLOCK),
    _case("row_best", kernels.row_best_kernel, 1, BLOCK_CHUNKS=64),
    _case("finite_chunk", kernels.finite_chunk_kernel, BLOCK=BLOCK),
    _case("uniform", kernels.uniform_kernel, BLOCK=UNIFORM_BLOCK),
    _case("penalise", kernels.penalise_kernel, BLOCK=BLOCK),
    _case("count", kernels.count_kernel, 1),
    *launch.COMPILE_CASES,
]
