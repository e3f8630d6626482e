"""What one step's rows need of their adapters, made on the GPU without asking the host.

Made once per step and used by every module of every layer. All memory has its largest size from
the start, so that one captured graph serves any mix of adapters.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from tenora_kernels.errors import KernelInputError, ShapeError
from tenora_kernels.lora.device_pool import LoraPool
from tenora_kernels.lora.tiling import (
    MAX_SPLIT_TOKENS,
    TILE_ROWS,
    Tiling,
    max_tiles,
    num_planes,
    sums_stride,
    tiling_of,
)
from tenora_kernels.lora.triton_kernels import plan_kernel

# rows that a program of the plan looks at together
SCAN_BLOCK, SCAN_BLOCK_FEW, FEW_ROWS = 1024, 256, 256


class DeviceLoraPlan:
    """The rows of one step, grouped by adapter and cut into tiles of one adapter each.

    `rows` holds row numbers, grouped by adapter in stable order; `tiles` [n, 3] names adapter,
    first place in `rows` and count, count 0 for tiles that are not needed. One plan serves graphs
    of every size: each begins with `assign`, and reads `rows` and `tiles` until its end.
    """

    def __init__(
        self,
        pools: Iterable[LoraPool],
        max_tokens: int,
        *,
        is_batch_invariant: bool = True,
        workspace: Tensor | None = None,
    ) -> None:
        """Take every pool that the step's layers use; plans may share a `workspace` in turn.

        Raises:
            ShapeError: pools that differ in their number of adapters or device.
        """
        pools = tuple(pools)
        kinds = {(pool.num_adapters, str(pool.device)) for pool in pools}
        if len(kinds) != 1:
            raise ShapeError(f"pools must agree in number of adapters and device, got {kinds}")
        self.num_adapters = pools[0].num_adapters
        self.max_tokens = max_tokens
        self.is_batch_invariant = is_batch_invariant
        device = pools[0].device
        self.rows = torch.zeros(max_tokens, dtype=torch.int32, device=device)
        most_tiles = max_tiles(max_tokens, self.num_adapters, TILE_ROWS)
        self.tiles = torch.zeros(most_tiles, 3, dtype=torch.int32, device=device)
        floats = max(workspace_floats(pool, max_tokens) for pool in pools)
        if workspace is None or workspace.numel() < floats:
            workspace = torch.empty(floats, dtype=torch.float32, device=device)
        self.workspace = workspace
        self.num_tokens = 0
        self.num_tiles = 0
        self.is_base_only = True
        self.tiling: Tiling = tiling_of(1, is_batch_invariant=is_batch_invariant)

    def assign(self, token_adapter: Tensor, *, is_base_only: bool = False) -> None:
        """Plan a step: int32 [T] on the GPU, `lora_index` of each row or -1. One launch.

        Capture it at the head of a graph: each replay reads `token_adapter` anew. With
        `is_base_only` nothing is launched, here and in `lora_add_`, and a graph holds no LoRA
        work. A `lora_index` that no pool has is taken for -1. Rows on the host are copied first,
        and looked through for any that has an adapter.
        Raises:
            KernelInputError: more rows than the plan has room for.
        """
        num_tokens = token_adapter.shape[0]
        if num_tokens > self.max_tokens:
            raise KernelInputError(f"{num_tokens} rows, the plan has room for {self.max_tokens}")
        if token_adapter.device.type == "cpu":
            is_base_only = is_base_only or bool((token_adapter < 0).all())
        self.num_tokens = num_tokens
        self.is_base_only = is_base_only or num_tokens == 0
        self.tiling = tiling_of(num_tokens, is_batch_invariant=self.is_batch_invariant)
        if self.is_base_only:
            self.num_tiles = 0
            return
        self.num_tiles = max_tiles(num_tokens, self.num_adapters, self.tiling.tile_rows)
        plan_kernel[(self.num_adapters + 1,)](
            token_adapter.to(self.rows.device, torch.int32).contiguous(),
            self.rows,
            self.tiles,
            num_tokens,
            self.num_adapters,
            self.num_tiles,
            TILE_ROWS=self.tiling.tile_rows,
            BINS=bins_of(self.num_adapters),
            BLOCK=SCAN_BLOCK_FEW if num_tokens <= FEW_ROWS else SCAN_BLOCK,
            num_warps=4,
            enable_fp_fusion=True,
        )


def bins_of(num_adapters: int) -> int:
    """Bins of the histogram: one for each adapter, one for none, a power of two."""
    return 1 << num_adapters.bit_length()


def workspace_floats(pool: LoraPool, max_tokens: int) -> int:
    """Rank sums that a shrink of up to `max_tokens` rows leaves for its expand."""
    planes = num_planes(pool.in_features, is_split=True)
    rows = max(max_tokens, planes * min(max_tokens, MAX_SPLIT_TOKENS))
    return rows * len(pool.slice_sizes) * sums_stride(pool.max_rank)
