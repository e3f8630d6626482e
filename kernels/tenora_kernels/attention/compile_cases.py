"""The specialisations of the attention kernels that serving launches, for the compile table."""

from dataclasses import dataclass

import torch
import triton

from tenora_kernels.attention import triton_kernels as kernels
from tenora_kernels.attention.cache_write import launch
from tenora_kernels.attention.cache_write import triton_kernels as write_kernels
from tenora_kernels.attention.tiles import (
    MAX_PARTS,
    SPLIT,
    decode_tiles,
    padded_dim,
    prefill_tiles,
    write_warps,
)
from tenora_kernels.compile_table import CompileCase

_TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


@dataclass(frozen=True, slots=True)
class _Model:
    """What of a model and its cache a kernel is specialised on."""

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    has_window: bool = False
    has_cap: bool = False
    is_fp8: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    def signature(self) -> dict[str, str]:
        wide = dict.fromkeys(("q", "k", "v", "out", "q_out"), _TYPES[self.dtype])
        cache = dict.fromkeys(("k_cache", "v_cache"), "*u8" if self.is_fp8 else _TYPES[self.dtype])
        float32 = dict.fromkeys(
            ("k_scale", "v_scale", "part_mixed", "part_peak", "part_mass", "cos", "sin"), "*fp32"
        )
        tables = dict.fromkeys(("block_tables", "seq_lens", "cu_query_lens"), "*i32")
        sizes = dict.fromkeys(
            (*_ROUND_SIZES, "table_stride", "max_parts", "window", "num_sequences"), "i32"
        )
        numbers = dict.fromkeys(("scale", "soft_cap"), "fp32")
        numbers |= dict.fromkeys(("slot_mapping", "positions"), "*i64")
        return wide | cache | float32 | tables | sizes | numbers

    def layer_constants(self) -> dict[str, int]:
        return {
            "GROUP": self.group,
            "HEAD_DIM": self.head_dim,
            "BLOCK_D": padded_dim(self.head_dim),
            "BLOCK_SIZE": self.block_size,
            "SCALE_STRIDE": 1,
            "HAS_WINDOW": self.has_window,
            "HAS_CAP": self.has_cap,
            "IS_FP8": self.is_fp8,
        }


# integers that serving passes as multiples of 16
_ROUND_SIZES = (
    "q_stride_token",
    "q_stride_head",
    "k_stride_token",
    "k_stride_head",
    "v_stride_token",
    "v_stride_head",
    "num_slots",
)


def _decode_case(model: _Model) -> CompileCase:
    tiles = decode_tiles(model.head_dim, model.group, model.dtype)
    return CompileCase(
        f"decode.{model.name}",
        kernels.decode_kernel,
        model.signature(),
        model.layer_constants()
        | {
            "SPLIT": SPLIT,
            "MAX_PARTS": MAX_PARTS,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
        },
        tiles.num_warps,
        tiles.num_stages,
        _ROUND_SIZES,
    )


def _join_case(model: _Model) -> CompileCase:
    return CompileCase(
        f"join_parts.{model.name}",
        kernels.join_parts_kernel,
        model.signature(),
        {
            "HEAD_DIM": model.head_dim,
            "HAS_WINDOW": model.has_window,
            "SPLIT": SPLIT,
            "MAX_PARTS": MAX_PARTS,
            "BLOCK_D": padded_dim(model.head_dim),
        },
    )


def _prefill_case(model: _Model) -> CompileCase:
    tiles = prefill_tiles(model.head_dim, model.group, model.dtype)
    return CompileCase(
        f"prefill.{model.name}",
        kernels.prefill_kernel,
        model.signature(),
        model.layer_constants() | {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n},
        tiles.num_warps,
        tiles.num_stages,
        _ROUND_SIZES,
    )


def _write_case(model: _Model) -> CompileCase:
    block_h, block_d = triton.next_power_of_2(model.kv_heads), padded_dim(model.head_dim)
    return CompileCase(
        f"write_kv.{model.name}",
        write_kernels.write_kv_kernel,
        model.signature(),
        {
            "HEADS": model.kv_heads,
            "HEAD_DIM": model.head_dim,
            "SCALE_STRIDE": 1,
            "IS_FP8": model.is_fp8,
            "BLOCK_H": block_h,
            "BLOCK_D": block_d,
        },
        write_warps(block_h, block_d),
        divisible_by_16=_ROUND_SIZES,
    )


def _rotate_case(model: _Model) -> CompileCase:
    return CompileCase(
        f"rotate_and_store.{model.name}",
        write_kernels.rotate_and_store_kernel,
        model.signature(),
        {
            "Q_HEADS": model.q_heads,
            "HEADS": model.kv_heads,
            "HEAD_DIM": model.head_dim,
            "SCALE_STRIDE": 1,
            "IS_FP8": model.is_fp8,
            "BLOCK_H": launch.BLOCK_H,
            "BLOCK_HALF": triton.next_power_of_2(model.head_dim // 2),
        },
        launch.ROTATE_WARPS,
        divisible_by_16=_ROUND_SIZES,
    )


_8B = _Model("8b", 32, 8, 128)
_8B_FP8 = _Model("8b_fp8", 32, 8, 128, is_fp8=True)
_SMOLLM2 = _Model("smollm2", 9, 3, 64)
# every branch at the widest head
_WIDEST = _Model("widest", 16, 8, 256, block_size=32, has_window=True, has_cap=True)
_FLOAT32 = _Model("fp32", 32, 8, 128, dtype=torch.float32)
_ATTENDING = (_8B, _8B_FP8, _SMOLLM2, _WIDEST)

COMPILE_CASES = [
    *(_decode_case(model) for model in _ATTENDING),
    *(_prefill_case(model) for model in (*_ATTENDING, _FLOAT32)),
    _join_case(_8B),
    _write_case(_8B_FP8),
    *(_rotate_case(model) for model in (_8B, _8B_FP8)),
]
