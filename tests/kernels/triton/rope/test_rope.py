"""Rotary embedding on the device: right where q and k lie together, and a token is alone."""

import pytest
import torch

from tenora_kernels.errors import ShapeError
from tenora_kernels.rope import build_rope_table, reference
from tenora_kernels.rope.triton_ops import apply_rope
from tenora_kernels.testing import is_close, is_far, poisoned


@pytest.mark.parametrize(
    ("tokens", "shape", "dtype"),
    [
        (1, (9, 3, 64), torch.bfloat16),
        (65, (2, 1, 80), torch.float32),
        (3, (17, 8, 32), torch.float16),
    ],
)
def test_equals_float64_where_q_and_k_lie_together(
    tokens: int, shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    q_heads, kv_heads, head_dim = shape
    joined = poisoned(tokens, q_heads + kv_heads + 1, head_dim, dtype=dtype)
    joined[:, :-1] = torch.randn(tokens, q_heads + kv_heads, head_dim, generator=generator)
    q, k = joined[:, :q_heads], joined[:, q_heads:-1]
    cos, sin = (table[-tokens:] for table in build_rope_table(head_dim, 2049, 10_000.0))
    tables = [table.to(dtype).double() for table in (cos, sin)]
    expected = reference.apply_rope(q.double(), k.double(), *tables)
    wrong = reference.apply_rope(q.double(), k.double(), tables[1], tables[0])
    for got, right, other in zip(apply_rope(q, k, cos, sin), expected, wrong, strict=True):
        assert is_far(other, right, dtype)
        assert got.dtype == dtype
        assert is_close(got, right, dtype)


def test_token_is_alone(generator: torch.Generator) -> None:
    q, k = torch.randn(2, 5, 3, 16, generator=generator)
    cos, sin = build_rope_table(16, 5, 10_000.0)
    together = apply_rope(q, k, cos, sin)
    q[:4] = k[:4] = float("nan")
    for got, before in zip(apply_rope(q, k, cos, sin), together, strict=True):
        assert torch.equal(got[4], before[4])
    for got, before in zip(apply_rope(q[4:], k[4:], cos[4:], sin[4:]), together, strict=True):
        assert torch.equal(got[0], before[4])


def test_empty_batch_and_wrong_shapes() -> None:
    q, table = torch.zeros(0, 2, 16), torch.zeros(0, 16)
    assert apply_rope(q, q, table, table)[0].shape == (0, 2, 16)
    with pytest.raises(ShapeError):
        apply_rope(q, q, table[:, :8], table)
    with pytest.raises(ShapeError):
        apply_rope(q, q, table, table[:, :8])
