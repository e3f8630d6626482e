"""The native kernels' cache: bfloat16, blocks of all heads together, keys element by element."""

import pytest
import torch
from torch import Tensor

from tenora_kernels.attention import native, reference
from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.native import library
from tenora_kernels.rope.rows import RopeRows

BLOCKS, BLOCK_SIZE = 40, 16
SIZES = [16, 32, 8, 24]  # the last two are copied tile by tile

pytestmark = pytest.mark.skipif(not library.is_available(), reason="no C++ compiler here")


def views(
    heads: int, head_dim: int, dtype: torch.dtype, block_size: int = BLOCK_SIZE
) -> tuple[Tensor, Tensor]:
    """Keys and values of blocks that hold all heads, keys beside values, filled at random."""
    memory = torch.randn(BLOCKS, heads, 2, block_size, head_dim).to(dtype)
    keys = memory[:, :, 0].view(BLOCKS, heads, head_dim, block_size).transpose(2, 3)
    return keys.transpose(0, 1), memory[:, :, 1].transpose(0, 1)


def batch_of(queries: list[int], lengths: list[int], block_size: int) -> AttentionBatch:
    free = torch.randperm(BLOCKS).tolist()
    tables = [[free.pop() for _ in range(-(-n // block_size))] for n in lengths]
    return AttentionBatch.build(queries, lengths, tables, block_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 20, 64, 80, 128])
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("block_size", SIZES)
def test_it_computes_what_the_reference_computes_of_the_stored_values(
    dtype: torch.dtype, head_dim: int, window: int | None, block_size: int
) -> None:
    torch.manual_seed(head_dim)
    keys, values = views(2, head_dim, dtype, block_size)
    batch = batch_of([1, 1, 70, 1], [131, 1, 100, 64], block_size)
    q = torch.randn(73, 6, head_dim)
    found = native.paged_attention(q, keys, values, batch, scale=0.1, sliding_window=window)
    k64, v64 = (x.double().contiguous() for x in (keys, values))
    wanted = reference.paged_attention(
        q.double(), k64, v64, batch, scale=0.1, sliding_window=window
    )
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layout_does_not_change_a_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    keys, values = views(3, 64, dtype)
    batch = batch_of([1, 30], [100, 90], BLOCK_SIZE)
    q = torch.randn(31, 9, 64)
    together = native.paged_attention(q, keys, values, batch, scale=0.125)
    apart = native.paged_attention(q, keys.contiguous(), values.contiguous(), batch, scale=0.125)
    assert torch.equal(together, apart)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 7])
def test_rows_that_are_computed_together_have_the_bits_of_one_alone(heads: int) -> None:
    torch.manual_seed(heads)
    keys, values = views(1, 64, torch.bfloat16)
    batch = batch_of([1, 5], [150, 69], BLOCK_SIZE)
    q = torch.randn(6, heads, 64)
    together = native.paged_attention(q, keys, values, batch, scale=0.125)
    for head in range(heads):
        alone = native.paged_attention(
            q[:, head : head + 1].contiguous(), keys, values, batch, scale=0.125
        )
        assert torch.equal(together[:, head], alone[:, 0])


@pytest.mark.parametrize("block_size", SIZES)
def test_what_no_row_sees_is_never_mixed_in(block_size: int) -> None:
    torch.manual_seed(2)
    keys, values = views(2, 64, torch.bfloat16, block_size)
    batch = batch_of([1, 20], [37, 75], block_size)
    seen = torch.zeros(BLOCKS, block_size, dtype=torch.bool)
    for table, length in zip(batch.block_tables, batch.seq_lens, strict=True):
        for position in range(length):
            seen[table[position // block_size], position % block_size] = True
    q = torch.randn(21, 6, 64)
    clean = native.paged_attention(q, keys, values, batch, scale=0.125)
    for cache in (keys, values):
        cache[:, ~seen] = float("nan")
    assert torch.equal(native.paged_attention(q, keys, values, batch, scale=0.125), clean)


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
    with pytest.raises(ShapeError, match="contiguous slots"):
        library.kv_cache(keys, keys)
    wide = torch.zeros(2, BLOCKS, BLOCK_SIZE, 32)[..., ::2]
    with pytest.raises(ShapeError, match="contiguous slots"):
        library.kv_cache(wide, wide)
