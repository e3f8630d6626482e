"""Rotary tables as Hugging Face computes them, and their use on q and k."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tenora_kernels.errors import KernelInputError, UnsupportedRopeTypeError
from tenora_kernels.rope import apply_rope, build_rope_table, reference
from tenora_kernels.testing import is_close, is_far

pytestmark = pytest.mark.usefixtures("backend")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, LLAMA3]
)
def test_table_equals_hugging_face(scaling: dict[str, Any] | None) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": 5e5},
    )
    positions = torch.arange(512).unsqueeze(0)
    expected = LlamaRotaryEmbedding(config)(torch.empty(1), positions)
    table = build_rope_table(64, 512, 5e5, scaling)
    for got, wanted in zip(table, expected, strict=True):
        assert got.dtype == torch.float32
        assert is_close(got, wanted[0], torch.float32)
    if scaling and scaling["rope_type"] != "default":
        assert is_far(build_rope_table(64, 512, 5e5)[0], expected[0][0], torch.float32)


def test_old_spelling_of_the_type_is_read() -> None:
    old = build_rope_table(16, 8, 1e4, {"type": "linear", "factor": 2.0})
    new = build_rope_table(16, 8, 1e4, {"rope_type": "linear", "factor": 2.0})
    assert torch.equal(old[0], new[0])


@pytest.mark.parametrize("name", ["dynamic", "yarn", "longrope", "proportional"])
def test_unknown_type_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedRopeTypeError, match=name):
        build_rope_table(16, 8, 1e4, {"rope_type": name, "factor": 2.0})


@pytest.mark.parametrize(
    ("head_dim", "scaling"),
    [(15, None), (0, None), (16, {"rope_type": "linear"}), (16, {"type": "linear", "factor": "2"})],
)
def test_refuses_what_does_not_fit(head_dim: int, scaling: dict[str, Any] | None) -> None:
    with pytest.raises(KernelInputError):
        build_rope_table(head_dim, 8, 1e4, scaling)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_rotation_equals_hugging_face(
    tokens: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    q = torch.randn(tokens, 6, 64, generator=generator).to(dtype)
    k = torch.randn(tokens, 2, 64, generator=generator).to(dtype)
    cos, sin = (table[7 : 7 + tokens] for table in build_rope_table(64, 100, 1e4))
    expected = apply_rotary_pos_emb(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos.to(dtype)[None], sin.to(dtype)[None]
    )
    got = apply_rope(q, k, cos, sin)
    if tokens:
        assert is_far(apply_rope(q, k, cos, -sin)[0], got[0], dtype)
    for mine, theirs in zip(got, expected, strict=True):
        assert is_close(mine, theirs[0].transpose(0, 1), dtype)


def test_neighbours_in_one_projection_rotate_alike(generator: torch.Generator) -> None:
    cos, sin = (table[:5] for table in build_rope_table(16, 100, 1e4))
    projection = torch.randn(5, 9 * 16, generator=generator)
    before = projection.clone()
    heads = projection.view(5, 9, 16)
    apart = reference.apply_rope(heads[:, :4], heads[:, 4:6], cos, sin)
    together = apply_rope(heads[:, :4], heads[:, 4:6], cos, sin)
    swapped = apply_rope(heads[:, 4:6], heads[:, :4], cos, sin)
    for got, expected in zip((*together, *swapped), (*apart, apart[1], apart[0]), strict=True):
        assert is_close(got, expected, torch.float32)
    assert torch.equal(projection, before)
