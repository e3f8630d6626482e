"""Device attention: right for ragged batches over poisoned memory, and a sequence is alone."""

import pytest
import torch
from torch import Tensor

from tenora_kernels.attention import AttentionBatch, reference
from tenora_kernels.attention.device_batch import DeviceAttentionBatch
from tenora_kernels.attention.triton_ops import paged_attention
from tenora_kernels.errors import KernelInputError, ShapeError
from tenora_kernels.testing import RaggedKv, is_close, is_far, poisoned, ragged_kv

# query heads, KV heads, head size: groups of 3, 4 and 1, sizes that are no powers of two
HEADS = ((9, 3, 64), (4, 1, 80), (2, 2, 32), (5, 1, 96))
SEQ_LENS, QUERY_LENS = (1, 63, 300, 65, 40, 530, 17), (1, 1, 1, 65, 5, 1, 2)


def _host(kv: RaggedKv, query_lens: tuple[int, ...]) -> AttentionBatch:
    lens = [len(keys) for keys in kv.keys]
    return AttentionBatch.build(query_lens, lens, kv.block_tables, kv.k_cache.shape[2])


def _wide(kv: RaggedKv) -> tuple[Tensor, Tensor]:
    return kv.k_cache.double(), kv.v_cache.double()


@pytest.mark.parametrize(
    ("heads", "block_size", "rules", "dtype"),
    [
        (HEADS[0], 16, (None, None), torch.float32),
        (HEADS[0], 16, (None, None), torch.float16),
        (HEADS[1], 32, (20, None), torch.float32),
        (HEADS[2], 16, (None, 5.0), torch.float32),
        (HEADS[3], 16, (270, 5.0), torch.float16),
        (HEADS[2], 32, (1, None), torch.float32),
    ],
)
def test_equals_float64(
    heads: tuple[int, int, int],
    block_size: int,
    rules: tuple[int | None, float | None],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    q_heads, kv_heads, head_dim = heads
    window, soft_cap = rules
    kv = ragged_kv(SEQ_LENS, kv_heads, head_dim, block_size, generator=generator, dtype=dtype)
    q = torch.randn(sum(QUERY_LENS), q_heads, head_dim, generator=generator).to(dtype)
    host = _host(kv, QUERY_LENS)
    scale = head_dim**-0.5
    expected = reference.paged_attention(
        q.double(), *_wide(kv), host, scale=scale, sliding_window=window, soft_cap=soft_cap
    )
    if window != 1:  # a query that sees only itself has no use for a scale
        wrong = reference.paged_attention(
            q.double(), *_wide(kv), host, scale=2 * scale, sliding_window=window, soft_cap=soft_cap
        )
        assert is_far(wrong, expected, dtype)
    got = paged_attention(
        q, kv.k_cache, kv.v_cache, host, scale=scale, sliding_window=window, soft_cap=soft_cap
    )
    assert got.dtype == dtype
    assert is_close(got, expected, dtype)


def test_long_sequences_in_many_parts(generator: torch.Generator) -> None:
    kv = ragged_kv([2049, 8321, 256, 257], 1, 16, 32, generator=generator)  # up to 32 parts
    q = torch.randn(4, 2, 16, generator=generator)
    host = _host(kv, (1, 1, 1, 1))
    expected = reference.paged_attention(q.double(), *_wide(kv), host, scale=0.25)
    got = paged_attention(q, kv.k_cache, kv.v_cache, host, scale=0.25)
    assert is_close(got, expected, torch.float32)


def test_sequence_has_the_same_bits_in_any_batch(generator: torch.Generator) -> None:
    """Alone, beside others, in padded buffers of larger capacity, and beside NaN."""
    lens, queries = [300, 40, 600, 20], (1, 5, 1, 20)
    kv = ragged_kv(lens, 1, 32, 16, generator=generator)
    q = torch.randn(sum(queries), 2, 32, generator=generator)
    together = paged_attention(q, kv.k_cache, kv.v_cache, _host(kv, queries), scale=0.2)
    starts = [0, 1, 6, 7, 27]
    for index in (0, 1, 2):
        rows = slice(starts[index], starts[index + 1])
        alone = AttentionBatch.build(
            queries[index : index + 1], lens[index : index + 1], [kv.block_tables[index]], 16
        )
        buffers = DeviceAttentionBatch.allocate(3, 2000, 64, 16, "cpu")
        buffers.block_tables.fill_(2**30)  # what a padded sequence points at is not read
        buffers.fill_(alone)
        padded = torch.cat((q[rows], torch.full((3, 2, 32), float("nan"))))
        for batch in (alone, buffers):
            got = paged_attention(padded, kv.k_cache, kv.v_cache, batch, scale=0.2)
            assert torch.equal(got[: rows.stop - rows.start], together[rows])
    q[7:] = float("nan")
    for block in kv.block_tables[3]:
        kv.k_cache[:, block] = kv.v_cache[:, block] = float("nan")
    damaged = paged_attention(q, kv.k_cache, kv.v_cache, _host(kv, queries), scale=0.2)
    assert torch.equal(damaged[:7], together[:7])
    assert damaged[7:].isnan().all()


@pytest.mark.parametrize("window", [None, 30])
def test_chunk_has_the_bits_of_the_whole_prompt(
    window: int | None, generator: torch.Generator
) -> None:
    kv = ragged_kv([90], 1, 16, 16, generator=generator)
    q = torch.randn(90, 2, 16, generator=generator)

    def attend(first: int, end: int) -> Tensor:
        batch = AttentionBatch.build([end - first], [end], [kv.block_tables[0]], 16)
        return paged_attention(
            q[first:end], kv.k_cache, kv.v_cache, batch, scale=0.25, sliding_window=window
        )

    chunks = torch.cat((attend(0, 7), attend(7, 50), attend(50, 90)))
    assert torch.equal(chunks, attend(0, 90))


def test_strided_queries_and_an_empty_batch(generator: torch.Generator) -> None:
    kv = ragged_kv([20], 1, 16, 16, generator=generator)
    joined = poisoned(5, 4, 16)
    q = joined[:, 1:3]
    q.copy_(torch.randn(5, 2, 16, generator=generator))
    host = _host(kv, (5,))
    got = paged_attention(q, kv.k_cache, kv.v_cache, host, scale=0.25)
    assert torch.equal(got, paged_attention(q.clone(), kv.k_cache, kv.v_cache, host, scale=0.25))
    empty = AttentionBatch.build([], [], [], 16)
    assert paged_attention(q[:0], kv.k_cache, kv.v_cache, empty, scale=0.25).shape == (0, 2, 16)


def test_buffers_refuse_what_exceeds_them_and_heads_must_fit() -> None:
    buffers = DeviceAttentionBatch.allocate(2, 64, 4, 16, "cpu")
    for queries, lens in (([1, 1, 1], [1, 1, 1]), ([1], [65]), ([5], [6])):
        tables = [tuple(range(5))] * len(queries)
        with pytest.raises(KernelInputError, match="larger capacity"):
            buffers.fill_(AttentionBatch.build(queries, lens, tables, 16))
    cache = torch.zeros(2, 4, 16, 32)
    with pytest.raises(ShapeError):
        paged_attention(torch.zeros(2, 3, 32), cache, cache, buffers, scale=1.0)
    with pytest.raises(ShapeError, match="contiguous"):
        paged_attention(torch.zeros(2, 2, 32), cache.mT, cache.mT, buffers, scale=1.0)
