"""Cache writes on the device: at the given slots only, in the model's dtype or in float8."""

import pytest
import torch

from tenora_kernels.attention import AttentionBatch, reference
from tenora_kernels.attention.fp8_reference import FP8, from_fp8, to_fp8
from tenora_kernels.attention.triton_ops import paged_attention, rotate_and_store, write_kv
from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.rope import RopeRows, build_rope_table
from tenora_kernels.rope.reference import apply_rope
from tenora_kernels.rope.triton_ops import apply_rope as triton_rope
from tenora_kernels.testing import error_of, is_close, is_far, poisoned, ragged_kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 3, 64), (63, 1, 80), (0, 2, 16)])
def test_equals_reference_and_touches_nothing_else(
    tokens: int, heads: int, head_dim: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    joined = torch.randn(tokens, 2 * heads + 1, head_dim, generator=generator).to(dtype)
    k, v = joined[:, :heads], joined[:, heads : 2 * heads]  # neighbours in one projection's output
    slots = torch.randperm(9 * 16, generator=generator)[:tokens]
    caches = [poisoned(heads, 9, 16, head_dim, dtype=dtype) for _ in range(4)]
    reference.write_kv(k, v, caches[0], caches[1], slots)
    # padded tokens have no slot
    k, v = (torch.cat((x, torch.full_like(x[:1], 7.0))) if tokens else x for x in (k, v))
    padded = torch.cat((slots, torch.tensor([-1]))) if tokens else slots
    write_kv(k, v, caches[2], caches[3], padded)
    for expected, got in zip(caches[:2], caches[2:], strict=True):
        assert torch.equal(got.nan_to_num(nan=9.0), expected.nan_to_num(nan=9.0))


@pytest.mark.parametrize("num_scales", [1, 3])
def test_float8_has_the_bits_of_its_specification(
    num_scales: int, generator: torch.Generator
) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(FP8).float()  # all numbers, halfway, beyond
    beside = torch.cat((every, every * 1.0625, every * 0.97, every * 1.5, every / 2))
    beside = torch.cat((beside, torch.tensor([1e-30, -0.0, 3e38, -1e5, 464.0, 2**-10])))
    k = beside[: 3 * 400].view(25, 3, 16)
    scale = torch.rand(num_scales, generator=generator) + 0.5
    caches = [torch.zeros(3, 2, 16, 16, dtype=FP8) for _ in "kv"]
    write_kv(k, k, caches[0], caches[1], torch.arange(25), k_scale=scale, v_scale=1.5 * scale)
    for cache, used in zip(caches, (scale, 1.5 * scale), strict=True):
        expected = to_fp8(k, used).transpose(0, 1).view(torch.uint8)
        got = cache.view(3, 32, 16)[:, :25].view(torch.uint8)
        is_nan = k.isnan().transpose(0, 1)
        assert torch.equal(got[~is_nan], expected[~is_nan])
        assert ((got[is_nan] & 0x7F) == 0x7F).all()


@pytest.mark.parametrize(
    ("tokens", "shape", "dtype"),
    [
        (1, (9, 3, 64), torch.float16),
        (65, (2, 1, 80), torch.float32),
        (2, (17, 9, 16), torch.bfloat16),
        (0, (2, 1, 16), torch.float32),
    ],
)
def test_rotates_and_stores_in_one_launch(
    tokens: int, shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    q_heads, heads, head_dim = shape
    joined = torch.randn(tokens, q_heads + 2 * heads, head_dim, generator=generator).to(dtype)
    q, k, v = torch.split(joined, [q_heads, heads, heads], dim=1)
    slots = torch.randperm(9 * 16, generator=generator)[:tokens]
    slots[1:2] = -1  # a padded token
    positions = torch.randint(1, 2049, (tokens,), generator=generator)
    rope = RopeRows(*build_rope_table(head_dim, 2049, 10_000.0), positions)
    k_cache, v_cache = (poisoned(heads, 9, 16, head_dim, dtype=dtype) for _ in "kv")
    got = rotate_and_store(q, k, v, rope, k_cache=k_cache, v_cache=v_cache, slot_mapping=slots)
    tables = [table.to(dtype).double() for table in rope.gathered]
    expected_q, expected_k = apply_rope(q.double(), k.double(), *tables)
    assert tokens == 0 or is_far(q, expected_q, dtype)
    assert is_close(got, expected_q, dtype)
    live = slots >= 0
    flat_k, flat_v = (
        cache.view(heads, -1, head_dim).transpose(0, 1) for cache in (k_cache, v_cache)
    )
    assert is_close(flat_k[slots[live]], expected_k[live], dtype)
    assert torch.equal(flat_v[slots[live]], v[live])
    assert int(flat_k.isfinite().sum()) == int(live.sum()) * heads * head_dim


def test_rotation_stores_the_float8_of_a_write(generator: torch.Generator) -> None:
    q, k, v = torch.randn(3, 5, 2, 16, generator=generator)
    rope = RopeRows(*build_rope_table(16, 64, 10_000.0), torch.arange(5) * 7)
    slots, scale = torch.tensor([3, 0, 17, 9, -1]), torch.tensor([0.02, 0.04])
    caches = [torch.zeros(2, 2, 16, 16, dtype=FP8) for _ in range(4)]
    write_kv(
        triton_rope(q, k, *rope.gathered)[1], v, caches[0], caches[1], slots,
        k_scale=scale, v_scale=scale,
    )  # fmt: skip
    rotate_and_store(
        q, k, v, rope, k_cache=caches[2], v_cache=caches[3], slot_mapping=slots,
        k_scale=scale, v_scale=scale,
    )  # fmt: skip
    for expected, got in zip(caches[:2], caches[2:], strict=True):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("num_scales", [1, 2])
def test_attention_reads_float8(num_scales: int, generator: torch.Generator) -> None:
    lens, queries = [300, 20], (1, 20)
    kv = ragged_kv(lens, 2, 32, 16, generator=generator)
    scale = torch.tensor([0.02, 0.04])[:num_scales]
    k_cache, v_cache = (
        to_fp8(cache.permute(1, 2, 0, 3), scale).permute(2, 0, 1, 3).contiguous()
        for cache in (kv.k_cache, kv.v_cache)
    )  # poison stays NaN
    q = torch.randn(21, 4, 32, generator=generator)
    host = AttentionBatch.build(queries, lens, kv.block_tables, 16)
    keys, values = (from_fp8(cache, scale).double() for cache in (k_cache, v_cache))
    expected = reference.paged_attention(q.double(), keys, values, host, scale=0.2)
    exact = reference.paged_attention(q, kv.k_cache, kv.v_cache, host, scale=0.2)
    assert is_far(exact, expected, torch.float32)
    assert error_of(exact, expected) < 0.1
    got = paged_attention(q, k_cache, v_cache, host, scale=0.2, k_scale=scale, v_scale=scale)
    assert is_close(got, expected, torch.float32)


def test_refuses_caches_and_scales_that_do_not_fit() -> None:
    k = torch.zeros(1, 2, 16)
    cache, slots = torch.zeros(2, 1, 16, 16), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ShapeError):
        write_kv(k[:, :1], k[:, :1], cache, cache, slots)
    with pytest.raises(ShapeError, match="slots"):
        write_kv(k, k, cache, cache, slots[:0])
    with pytest.raises(DtypeError):
        write_kv(k, k, cache.to(FP8), cache.to(FP8), slots)
    with pytest.raises(DtypeError):
        write_kv(k, k, cache, cache, slots, k_scale=k[0, 0, :1], v_scale=k[0, 0, :1])
    with pytest.raises(ShapeError, match="scales"):
        write_kv(k, k, cache.to(FP8), cache.to(FP8), slots, k_scale=k[0], v_scale=k[0])
