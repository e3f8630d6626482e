"""The memory of keys and values: one pair of tensors per layer, addressed by block."""

from collections.abc import Sequence

import torch

from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.transformer import LayerKV
from tenora_kernels.dispatch import active_backend


def kv_block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers, keys and values together."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return per_token * block_size * dtype.itemsize


def allocate_kv(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> list[LayerKV]:
    """Zeroed keys and values of every layer: `[num_kv_heads, blocks, size, head_dim]` each.

    The native kernels take a block of all heads together, keys beside values: a sequence's few
    blocks are then read as one stream. Keys stand element by element, so that scores of
    neighbouring slots fill a register. The others take heads that are contiguous.
    """
    if active_backend() == "native":
        together = (num_blocks, config.num_kv_heads, 2, block_size, config.head_dim)
        return [_views_of(torch.zeros(together, dtype=dtype)) for _ in range(config.num_layers)]
    shape = (config.num_kv_heads, num_blocks, block_size, config.head_dim)
    return [
        LayerKV(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
        )
        for _ in range(config.num_layers)
    ]


def _views_of(memory: torch.Tensor) -> LayerKV:
    blocks, heads, _, block_size, head_dim = memory.shape
    keys = memory[:, :, 0].view(blocks, heads, head_dim, block_size).transpose(2, 3)
    return LayerKV(keys.transpose(0, 1), memory[:, :, 1].transpose(0, 1))


def zero_kv_blocks(kv: Sequence[LayerKV], blocks: Sequence[int]) -> None:
    """Overwrite the keys and values of `blocks` with zeros in every layer."""
    if not blocks or not kv:
        return
    index = torch.tensor(list(blocks), dtype=torch.int64, device=kv[0].keys.device)
    for layer in kv:
        layer.keys[:, index] = 0
        layer.values[:, index] = 0
