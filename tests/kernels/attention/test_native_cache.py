"""The native kernels' cache: bfloat16, and blocks of all heads together."""

import pytest
import torch
from torch import Tensor

from tenora_kernels.attention import native, reference
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.native import library
from tenora_kernels.rope.rows import RopeRows

BLOCKS, BLOCK_SIZE = 40, 16

pytestmark = pytest.mark.skipif(not library.is_available(), reason="no C++ compiler here")


def views(heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of blocks that hold all heads, keys beside values, filled at random."""
    memory = torch.randn(BLOCKS, heads, 2, BLOCK_SIZE, head_dim).to(dtype)
    keys, values = (memory[:, :, i].transpose(0, 1) for i in range(2))
    return keys, values


def batch_of(queries: list[int], lengths: list[int]) -> AttentionBatch:
    free = torch.randperm(BLOCKS).tolist()
    tables = [[free.pop() for _ in range(-(-n // BLOCK_SIZE))] for n in lengths]
    return AttentionBatch.build(queries, lengths, tables, BLOCK_SIZE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 20, 64, 80, 128])
@pytest.mark.parametrize("window", [None, 50])
def test_it_computes_what_the_reference_computes_of_the_stored_values(
    dtype: torch.dtype, head_dim: int, window: int | None
) -> None:
    torch.manual_seed(head_dim)
    keys, values = views(2, head_dim, dtype)
    batch = batch_of([1, 1, 70, 1], [131, 1, 100, 64])
    q = torch.randn(73, 6, head_dim)
    found = native.paged_attention(q, keys, values, batch, scale=0.1, sliding_window=window)
    k64, v64 = (x.double().contiguous() for x in (keys, values))
    wanted = reference.paged_attention(
        q.double(), k64, v64, batch, scale=0.1, sliding_window=window
    )
    assert (found - wanted).abs().max() < 1e-5


def test_layout_does_not_change_a_bit() -> None:
    torch.manual_seed(0)
    keys, values = views(3, 64, torch.bfloat16)
    batch = batch_of([1, 30], [100, 90])
    q = torch.randn(31, 9, 64)
    together = native.paged_attention(q, keys, values, batch, scale=0.125)
    apart = native.paged_attention(q, keys.contiguous(), values.contiguous(), batch, scale=0.125)
    assert torch.equal(together, apart)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_stores_rounded_to_nearest_at_the_slots_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    keys, values = views(2, 20, dtype)
    before = keys.clone(), values.clone()
    q, k, v = torch.randn(3, 4, 20), torch.randn(3, 2, 20), torch.randn(3, 2, 20)
    rope = RopeRows(torch.ones(8, 20), torch.zeros(8, 20), torch.tensor([0, 1, 2]))
    slots = torch.tensor([5, 17, 639])
    native.rotate_and_store(q, k, v, rope, k_cache=keys, v_cache=values, slot_mapping=slots)
    for cache, old, new in ((keys, before[0], k), (values, before[1], v)):
        expected = old.clone()
        for token, slot in enumerate(slots.tolist()):
            expected[:, slot // BLOCK_SIZE, slot % BLOCK_SIZE] = new[token].to(dtype)
        assert torch.equal(cache, expected)


def test_a_cache_that_it_cannot_read_is_refused() -> None:
    keys, values = views(2, 16, torch.float32)
    with pytest.raises(DtypeError, match="float16"):
        library.kv_cache(keys.half(), values.half())
    with pytest.raises(ShapeError, match="alike"):
        library.kv_cache(keys, values.contiguous())
    scattered = keys.transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(ShapeError, match="contiguous slots"):
        library.kv_cache(scattered, scattered)
