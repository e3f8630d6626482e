"""Paged attention: right for ragged batches, and a sequence sees only itself."""

import itertools

import pytest
import torch
from torch import Tensor

from tenora_kernels.attention import AttentionBatch, paged_attention, reference, write_kv
from tenora_kernels.errors import KernelInputError, ShapeError
from tenora_kernels.testing import RaggedKv, is_close, is_far, poisoned, ragged_kv

pytestmark = pytest.mark.usefixtures("backend")

HEADS = ((9, 3, 64), (4, 2, 16), (8, 1, 128), (3, 3, 72))
ODD_HEADS = (*HEADS, (3, 3, 65))


def _batch(kv: RaggedKv, query_lens: list[int]) -> AttentionBatch:
    lens = [len(keys) for keys in kv.keys]
    return AttentionBatch.build(query_lens, lens, kv.block_tables, kv.k_cache.shape[2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", ODD_HEADS)
@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 1, 20, 10_000])
def test_equals_reference(
    heads: tuple[int, int, int],
    window: int | None,
    soft_cap: float | None,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    q_heads, kv_heads, head_dim = heads
    seq_lens, query_lens = [1, 63, 65, 300, 40, 90], [1, 1, 1, 1, 40, 33]
    kv = ragged_kv(seq_lens, kv_heads, head_dim, 16, generator=generator, dtype=dtype)
    q = torch.randn(sum(query_lens), q_heads, head_dim, generator=generator).to(dtype)
    batch = _batch(kv, query_lens)
    scale = head_dim**-0.5
    args = (q, kv.k_cache, kv.v_cache, batch)
    expected = reference.paged_attention(
        *args, scale=scale, sliding_window=window, soft_cap=soft_cap
    )
    if window != 1:  # a query that sees only itself has no use for a scale
        wrong = reference.paged_attention(
            *args, scale=2 * scale, sliding_window=window, soft_cap=soft_cap
        )
        assert is_far(wrong, expected, dtype)
    got = paged_attention(*args, scale=scale, sliding_window=window, soft_cap=soft_cap)
    assert got.dtype == dtype
    assert is_close(got, expected, dtype)


@pytest.mark.parametrize("block_size", [1, 8, 12, 16, 32])
def test_long_context_equals_reference(block_size: int, generator: torch.Generator) -> None:
    kv = ragged_kv([2049, 700, 2], 2, 16, block_size, generator=generator)
    q = torch.randn(3, 4, 16, generator=generator)
    args = (q, kv.k_cache, kv.v_cache, _batch(kv, [1, 1, 1]))
    expected = reference.paged_attention(*args, scale=0.25)
    assert is_close(paged_attention(*args, scale=0.25), expected, torch.float32)


@pytest.mark.parametrize(
    ("heads", "window", "threads"),
    [*itertools.product(HEADS, (None, 100), (1,)), (HEADS[0], None, 2)],
)
def test_sequence_is_independent_of_its_neighbours(
    heads: tuple[int, int, int], window: int | None, threads: int, generator: torch.Generator
) -> None:
    torch.set_num_threads(threads)
    q_heads, kv_heads, head_dim = heads
    for length, queries in itertools.product((1, 100, 191, 385), (1, 5)):
        if queries > length:
            continue
        own_q = torch.randn(queries, q_heads, head_dim, generator=generator)
        alone: Tensor | None = None
        own: RaggedKv | None = None
        for trial in range(6):
            count = 0 if trial == 0 else int(torch.randint(1, 16, (), generator=generator))
            lens = torch.randint(1, 900 if trial % 2 else 300, (count,), generator=generator)
            seq_lens = [length, *lens.tolist()]
            query_lens = [queries] + [min(1 + 6 * (n % 3 == 0), n) for n in seq_lens[1:]]
            kv = ragged_kv(seq_lens, kv_heads, head_dim, 16, generator=generator)
            own = own or kv
            write_kv(own.keys[0], own.values[0], kv.k_cache, kv.v_cache, kv.slots(0))
            others = torch.randn(sum(query_lens[1:]), q_heads, head_dim, generator=generator)
            got = paged_attention(
                torch.cat((own_q, others)),
                kv.k_cache,
                kv.v_cache,
                _batch(kv, query_lens),
                scale=head_dim**-0.5,
                sliding_window=window,
            )[:queries]
            alone = got if alone is None else alone
            assert torch.equal(got, alone), (length, queries, trial)


def test_chunks_tokens_and_whole_prompt_agree(generator: torch.Generator) -> None:
    kv = ragged_kv([130], 3, 64, 16, generator=generator)
    q = torch.randn(130, 9, 64, generator=generator)

    def attend(chunks: list[int]) -> Tensor:
        parts, end = [], 0
        for size in chunks:
            end += size
            batch = AttentionBatch.build([size], [end], kv.block_tables, 16)
            part = q[end - size : end]
            parts.append(paged_attention(part, kv.k_cache, kv.v_cache, batch, scale=0.125))
        return torch.cat(parts)

    whole = attend([130])
    assert is_close(attend([63, 65, 2]), whole, torch.float32)
    assert is_close(attend([1] * 130), whole, torch.float32)
    assert is_far(whole.roll(1, 0), whole, torch.float32)


def test_strided_queries_are_read_right(generator: torch.Generator) -> None:
    kv = ragged_kv([40, 7], 2, 16, 16, generator=generator)
    wide = torch.randn(8, 9, 16, generator=generator)
    q = wide[:, :4]
    for query_lens in ([1, 7], [7, 1]):
        for cap in (None, 3.0):
            args = (kv.k_cache, kv.v_cache, _batch(kv, query_lens))
            got = paged_attention(q, *args, scale=0.25, soft_cap=cap)
            same = paged_attention(q.contiguous(), *args, scale=0.25, soft_cap=cap)
            assert torch.equal(got, same)


def test_layers_of_one_batch_do_not_share_results(generator: torch.Generator) -> None:
    layers = [ragged_kv([40, 7], 2, 16, 16, generator=generator) for _ in range(2)]
    q = torch.randn(2, 4, 16, generator=generator)
    tables = layers[0].block_tables
    batch = AttentionBatch.build([1, 1], [40, 7], tables, 16)
    second = ragged_kv([40, 7], 2, 16, 16, generator=generator)
    for index in range(2):
        table = torch.tensor(tables[index])
        position = torch.arange(len(second.keys[index]))
        slots = table[position // 16] * 16 + position % 16
        write_kv(
            second.keys[index], second.values[index], layers[1].k_cache, layers[1].v_cache, slots
        )
    for layer in layers:
        args = (q, layer.k_cache, layer.v_cache, batch)
        expected = reference.paged_attention(*args, scale=0.25)
        assert is_close(paged_attention(*args, scale=0.25), expected, torch.float32)


def test_empty_batch_gives_empty_result() -> None:
    cache = poisoned(2, 3, 16, 8)
    batch = AttentionBatch.build([], [], [], 16)
    assert paged_attention(torch.empty(0, 4, 8), cache, cache, batch, scale=1.0).shape == (0, 4, 8)


def test_write_kv_touches_its_slots_only(generator: torch.Generator) -> None:
    k, v = torch.randn(2, 5, 2, 8, generator=generator)
    slots = torch.tensor([17, 3, 16, 47, 0])
    caches = [poisoned(2, 3, 16, 8) for _ in range(4)]
    write_kv(k, v, caches[0], caches[1], slots)
    reference.write_kv(k, v, caches[2], caches[3], slots)
    for got, expected in ((caches[0], caches[2]), (caches[1], caches[3])):
        assert torch.equal(got.nan_to_num(nan=7e7), expected.nan_to_num(nan=7e7))
        assert int(got.isfinite().sum()) == 5 * 2 * 8


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "tables"),
    [
        ([1], [1, 2], [[0]]),
        ([0], [1], [[0]]),
        ([2], [1], [[0]]),
        ([1], [17], [[0]]),
    ],
)
def test_batch_refuses_what_does_not_fit(
    query_lens: list[int], seq_lens: list[int], tables: list[list[int]]
) -> None:
    with pytest.raises(KernelInputError):
        AttentionBatch.build(query_lens, seq_lens, tables, 16)


def test_attention_refuses_what_does_not_fit() -> None:
    batch = AttentionBatch.build([1], [1], [[0]], 16)
    cache = poisoned(2, 3, 16, 8)
    strided = poisoned(2, 3, 8, 16).transpose(2, 3)
    for q, k_cache in (
        (torch.ones(2, 4, 8), cache),
        (torch.ones(1, 3, 8), cache),
        (torch.ones(1, 4, 9), cache),
        (torch.ones(1, 4, 8), poisoned(2, 3, 8, 8)),
        (torch.ones(1, 4, 8), strided),
    ):
        with pytest.raises(ShapeError):
            paged_attention(q, k_cache, k_cache, batch, scale=1.0)
    with pytest.raises(ShapeError):
        write_kv(torch.ones(1, 2, 8), torch.ones(1, 2, 8), strided, strided, torch.tensor([0]))
