"""Every tensor belongs to a module of the base, or the adapter is refused and says why."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import PREFIX, Tensor, Upload, mk

Codes = Callable[..., list[str]]

Q0 = "model.layers.0.self_attn.q_proj"


def ones(*shape: int) -> Tensor:
    return Tensor.of(np.ones(shape))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PREFIX, ""),
        (".weight", ".default.weight"),
        (PREFIX, f"_orig_mod.{PREFIX}"),
        (PREFIX, f"{PREFIX}_orig_mod."),
        (".self_attn.", "._orig_mod.self_attn._fsdp_wrapped_module."),
        (".mlp.", "._checkpoint_wrapped_module.mlp."),
        (PREFIX, f"module.{PREFIX}"),
    ],
)
def test_supported_spellings_are_one_adapter(old: str, new: str, judge: Judge) -> None:
    """A08, A09: equal digests mean bit-identical weights and scales."""
    plain = judge(mk()).ref
    assert plain is not None
    assert judge(mk().renamed(old, new)).ref == plain
    assert judge(mk(seed=1)).ref != plain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.layers", "language_model.model.layers"),
        (PREFIX + "model.layers", PREFIX + "layers"),
        ("model.layers", "model.default.layers"),
        (".weight", ".other.weight"),
        ("self_attn", "attention"),
        ("layers.0", "layers.00"),
        ("_proj", "_proj.default"),
    ],
)
def test_unsupported_spellings_match_nothing(old: str, new: str, codes: Codes) -> None:
    """A06, A09: a suffix that fits is not enough."""
    assert codes(mk(targets=["q_proj"], layers=[0]).renamed(old, new)) == ["no_tensor_matched"]


def test_no_match_shows_an_example_of_each_side(judge: Judge) -> None:
    upload = mk().renamed("model.layers", "language_model.model.layers")
    message = judge(upload).problems[0].message
    assert f"{PREFIX}language_model.model.layers.0.self_attn.q_proj.lora_A.weight" in message
    assert f"{PREFIX}{Q0}.lora_A.weight" in message


def test_refuses_targets_that_the_base_does_not_have(codes: Codes) -> None:
    upload = mk(targets=["q_proj"]).renamed("self_attn.q_proj", "block_sparse_moe.w1")
    assert codes(upload) == ["no_tensor_matched"]


def test_refuses_left_over_tensors_by_name(judge: Judge) -> None:
    """A07."""
    extra = {
        f"{PREFIX}model.layers.9.mlp.up_proj.lora_A.weight": ones(8, 64),
        f"{PREFIX}model.layers.9.mlp.up_proj.lora_B.weight": ones(128, 8),
        f"{PREFIX}model.layers.0.mlp.router.lora_A.weight": ones(8, 64),
        f"{PREFIX}model.layers.0.mlp.router.lora_B.weight": ones(4, 8),
    }
    report = judge(mk().with_tensors(extra))
    assert [problem.code for problem in report.problems] == ["unconsumed_tensors"]
    assert all(name in report.problems[0].message for name in extra)


def test_refuses_two_spellings_of_one_module(codes: Codes) -> None:
    """A09."""
    twice = mk().with_tensors({f"{Q0}.lora_A.weight": ones(8, 64)})
    assert codes(twice) == ["duplicate_module"]


@pytest.mark.parametrize("half", ["A", "B"])
def test_refuses_half_a_module(half: str, codes: Codes) -> None:
    upload = mk()
    kept = {k: v for k, v in upload.tensors.items() if f"{Q0}.lora_{half}" not in k}
    assert codes(Upload(upload.config, kept)) == ["missing_half"]


def test_refuses_a_file_without_tensors(judge: Judge) -> None:
    """A12 (i)."""
    report = judge(Upload(mk().config))
    assert report.problems[0].code == "empty_adapter"
    assert "ZeRO-3" in report.problems[0].message


def test_refuses_tensors_without_values(judge: Judge) -> None:
    """A12 (ii)."""
    upload = mk()
    report = judge(Upload(upload.config, dict.fromkeys(upload.tensors, ones(0))))
    assert [problem.code for problem in report.problems] == ["empty_tensor"]
    assert "ZeRO-3" in report.problems[0].message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["layers.0.attention.wq.lora_A.weight"], [("foreign_format", "mistral-finetune")]),
        (
            ["layers.0.attention.wq.lora_A.weight", "layers.0.attention_norm.weight"],
            [("foreign_format", "mistral-finetune"), ("norm_weights", "not LoRA")],
        ),
        (
            ["decoder.layers.0.self_attention.linear_qkv.adapter.linear_in.weight"],
            [("foreign_format", "Megatron")],
        ),
        (
            ["decoder.layers.0.self_attention.linear_proj.lora_A.default.weight"],
            [("foreign_format", "Megatron")],
        ),
        ([f"{Q0}.lora_a", f"{Q0}.lora_b"], [("foreign_format", "MLX")]),
        (["lora_unet_down_blocks_0.lora_down.weight"], [("foreign_format", "kohya")]),
        (
            [f"{PREFIX}model.layers.0.self_attn.qkv_proj.lora_A.weight"],
            [("fused_projection", "fused")],
        ),
        ([f"{PREFIX}model.layers.0.input_layernorm.weight"], [("norm_weights", "norms")]),
        ([f"{PREFIX}model.norm.weight"], [("norm_weights", "norms")]),
        ([f"{PREFIX}{Q0}.lora_magnitude_vector"], [("dora_unsupported", "magnitudes")]),
        ([f"{PREFIX}{Q0}.lora_magnitude_vector.weight"], [("dora_unsupported", "magnitudes")]),
        ([f"{PREFIX}{Q0}.bias"], [("bias_unsupported", "biases")]),
        ([f"{PREFIX}{Q0}.lora_B.bias"], [("bias_unsupported", "biases")]),
        ([f"{PREFIX}lm_head.lora_A.weight"], [("head_lora_unsupported", "lm_head")]),
        (
            [f"{PREFIX}model.embed_tokens.lora_embedding_A"],
            [("embedding_lora_unsupported", "embedding")],
        ),
        (
            [f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta"],
            [("modules_to_save", "trained")],
        ),
        ([f"{PREFIX}lm_head.modules_to_save.weight"], [("modules_to_save", "trained")]),
    ],
)
@pytest.mark.parametrize("beside_good_tensors", [False, True])
def test_says_what_a_foreign_tensor_is(
    names: list[str], expected: list[tuple[str, str]], beside_good_tensors: bool, judge: Judge
) -> None:
    """A11, A15 (magnitudes whatever the configuration says), A19, A23, A25, A26."""
    start = mk() if beside_good_tensors else Upload(mk().config)
    report = judge(start.with_tensors({name: ones(8, 8) for name in names}))
    assert report.ref is None
    assert [problem.code for problem in report.problems] == [code for code, _ in expected]
    for problem, (_, word) in zip(report.problems, expected, strict=True):
        assert word in problem.message


def test_names_how_many_rows_a_saved_head_has_too_many(judge: Judge) -> None:
    """A19: 512 + 64 rows."""
    for rows, says in ((576, True), (512, False)):
        saved = {
            f"{PREFIX}lm_head.weight": ones(rows, 64),
            f"{PREFIX}model.embed_tokens.weight": ones(rows, 64),
        }
        upload = mk().configured(modules_to_save=["lm_head", "embed_tokens"]).with_tensors(saved)
        report = judge(upload)
        assert {problem.code for problem in report.problems} == {"modules_to_save"}
        assert any("64 too many" in problem.message for problem in report.problems) == says
