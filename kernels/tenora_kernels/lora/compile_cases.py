"""The launches of batched LoRA that the compile table follows: decode, prefill, float32."""

import torch

from tenora_kernels.compile_table import CompileCase
from tenora_kernels.lora.device_pool import PAGE_ROWS
from tenora_kernels.lora.tiling import block_inputs, expand_stages
from tenora_kernels.lora.triton_kernels import expand_kernel, plan_kernel, shrink_kernel

_WORK = dict.fromkeys(("table_ptr", "rows_ptr", "tiles_ptr"), "*i32") | {"sums_ptr": "*fp32"}
_SHRINK = dict.fromkeys(
    (
        "num_tokens",
        "num_splits",
        "in_features",
        "x_stride",
        "capacity_ranks",
        "table_columns",
        "sums_stride",
    ),
    "i32",
)
_EXPAND = dict.fromkeys(
    ("num_tokens", "num_slices", "out_features", "y_stride", "table_columns", "sums_stride"), "i32"
)


def _plan() -> CompileCase:
    return CompileCase(
        "plan",
        plan_kernel,
        dict.fromkeys(("token_adapter_ptr", "rows_ptr", "tiles_ptr"), "*i32")
        | dict.fromkeys(("num_tokens", "num_adapters", "num_tiles"), "i32"),
        {"TILE_ROWS": 16, "BINS": 128, "BLOCK": 1024},
    )


def _shrink(name: str, dtype: str, tile_rows: int, block_r: int, num_warps: int) -> CompileCase:
    torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
    return CompileCase(
        f"shrink.{name}",
        shrink_kernel,
        {"x_ptr": f"*{dtype}", "lora_a_ptr": f"*{dtype}"} | _WORK | _SHRINK,
        {
            "SPLIT_SIZE": 512,
            "TILE_ROWS": tile_rows,
            "BLOCK_R": block_r,
            "BLOCK_K": block_inputs(torch_dtype, tile_rows),
            "PAGE_ROWS": PAGE_ROWS,
        },
        num_warps=num_warps,
        num_stages=3,
        divisible_by_16=("in_features", "x_stride", "sums_stride"),
    )


def _expand(
    name: str, dtype: str, tile_rows: int, block_n: int, num_warps: int, *, is_worst: bool = False
) -> CompileCase:
    """`is_worst`: every option, ranks above 16, and the planes of 14336 inputs."""
    is_prefill = tile_rows > 16
    optional = ("out_scale_ptr", "out_bias_ptr")
    planes = 14 if is_worst else 8
    constants = {
        "NUM_PLANES": 1 if is_prefill else planes,
        "TILE_ROWS": tile_rows,
        "BLOCK_R": 32 if is_prefill or is_worst else 16,
        "BLOCK_N": block_n,
        "PAGE_ROWS": PAGE_ROWS,
        "ALIGNED": 16,
    }
    return CompileCase(
        f"expand.{name}",
        expand_kernel,
        {"y_ptr": f"*{dtype}", "lora_b_ptr": f"*{dtype}"}
        | dict.fromkeys(("out_tiles_ptr", "slice_sizes_ptr"), "*i64")
        | dict.fromkeys(optional, "*fp32")
        | _WORK
        | _EXPAND,
        constants | ({} if is_worst else dict.fromkeys(optional)),
        num_warps=num_warps,
        num_stages=expand_stages(tile_rows),
        divisible_by_16=("out_features", "y_stride", "sums_stride"),
    )


COMPILE_CASES = [
    _plan(),
    _shrink("bf16.few", "bf16", 16, 16, 2),
    _shrink("bf16.decode", "bf16", 16, 32, 4),
    _shrink("bf16.prefill", "bf16", 128, 32, 8),
    _shrink("fp32.decode", "fp32", 16, 16, 4),
    _expand("bf16.few", "bf16", 16, 64, 2),
    _expand("bf16.decode.worst", "bf16", 16, 128, 4, is_worst=True),
    _expand("bf16.prefill.64", "bf16", 64, 64, 4),
    _expand("bf16.prefill.128", "bf16", 128, 64, 8),
    _expand("fp32.decode", "fp32", 16, 128, 4),
]
