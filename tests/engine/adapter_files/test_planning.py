"""Ranks, scales and targets: what PEFT would compute, or a refusal that names the contradiction."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tenora_engine.adapter_files.shapes import BaseShapes, UnsupportedBaseError
from tests.engine.adapter_files.conftest import MAX_RANK, Judge
from tests.support.adapter_builder import PREFIX, TINY_BASE, Tensor, Upload, mk

Codes = Callable[..., list[str]]

LAYER_3_Q = ".*layers\\.3\\..*q_proj"


def test_rslora_scales_by_the_root_of_the_rank(judge: Judge) -> None:
    """A01."""
    adapter = judge.accepted(mk(r=16, alpha=32, use_rslora=True))
    assert {module.scaling for module in adapter.modules.values()} == {8.0}
    assert judge(mk(r=16, alpha=32, use_rslora=True)).scalings == (8.0,)
    assert judge(mk(r=16, alpha=32)).scalings == (2.0,)


def test_rslora_uses_the_rank_of_each_module(judge: Judge) -> None:
    """A02."""
    adapter = judge.accepted(
        mk(
            r=16,
            alpha=16,
            use_rslora=True,
            rank_pattern={"down_proj": 4},
            ranks={"down_proj": 4},
        )
    )
    for name, module in adapter.modules.items():
        rank = 4 if name.endswith("down_proj") else 16
        assert (module.rank, module.scaling) == (rank, 16 / math.sqrt(rank))


def test_rank_and_alpha_patterns_apply_to_the_modules_they_match(judge: Judge) -> None:
    """A03."""
    upload = mk(
        r=8,
        alpha=16,
        rank_pattern={LAYER_3_Q: 32},
        alpha_pattern={LAYER_3_Q: 128},
        ranks={"layers.3.self_attn.q_proj": 32},
    )
    adapter = judge.accepted(upload)
    scalings = {name: module.scaling for name, module in adapter.modules.items()}
    assert scalings.pop("layers.3.q_proj") == 4.0
    assert set(scalings.values()) == {2.0}
    report = judge(upload)
    assert (report.max_rank, report.num_modules, report.scalings) == (32, 28, (2.0, 4.0))


def test_the_first_matching_pattern_decides(judge: Judge) -> None:
    upload = mk(alpha_pattern={"q_proj": 8, LAYER_3_Q: 64}, targets=["q_proj"])
    assert judge(upload).scalings == (1.0,)


@pytest.mark.parametrize(
    "target_modules", [["q_proj", "v_proj"], ".*\\.(q|v)_proj", "all-linear", "All-Linear"]
)
def test_every_form_of_target_modules_gives_the_same_adapter(
    target_modules: Any, judge: Judge
) -> None:
    """A05: tensors decide what is adapted, the field only bounds it."""
    upload = mk(targets=["q_proj", "v_proj"])
    report = judge(upload.configured(target_modules=target_modules))
    assert report.ref is not None
    assert report.ref == judge(upload).ref
    assert report.target_modules == ("q_proj", "v_proj")


@pytest.mark.parametrize("target_modules", ["auto", ["auto"], [], "", "q_proj"])
def test_refuses_target_modules_in_which_peft_finds_nothing(
    target_modules: Any, codes: Codes
) -> None:
    """A05: an unresolved placeholder; a text is a pattern for the whole path."""
    found = codes(mk(targets=["q_proj"]).configured(target_modules=target_modules))
    assert found == ["outside_target_modules", "no_target_matched"]


def test_a_tensor_outside_target_modules_is_refused(codes: Codes, judge: Judge) -> None:
    upload = mk(targets=["q_proj", "k_proj"]).configured(target_modules=["q_proj"])
    assert codes(upload) == ["outside_target_modules"]
    assert "target_modules" in judge(upload).problems[0].message
    assert codes(mk(exclude_modules=["k_proj"])) == ["outside_target_modules"]
    assert codes(mk(exclude_modules=".*layers\\.1\\..*")) == ["outside_target_modules"]


def test_layers_to_transform_bounds_the_layers(judge: Judge, codes: Codes) -> None:
    """A27."""
    adapter = judge.accepted(mk(layers=[2, 3], layers_to_transform=[2, 3]))
    assert {name.split(".")[1] for name in adapter.modules} == {"2", "3"}
    judge.accepted(mk(layers=[2], layers_to_transform=2, layers_pattern="layers"))
    assert codes(mk(layers=[0, 2, 3], layers_to_transform=[2, 3])) == ["outside_layers"]


def test_modules_without_tensors_are_noted(judge: Judge, codes: Codes) -> None:
    report = judge(mk(layers=[2, 3]))
    assert [warning.code for warning in report.warnings] == ["modules_without_tensors"]
    assert "14 of 28" in report.warnings[0].message
    assert codes(mk(layers=[2, 3], init_lora_weights=False)) == ["missing_tensors"]


@pytest.mark.parametrize("rank", [1, 3, 7, MAX_RANK])
def test_accepts_every_rank_up_to_the_servers_maximum(rank: int, judge: Judge) -> None:
    """A28."""
    report = judge(mk(r=rank))
    assert report.problems == ()
    assert report.max_rank == rank


def test_refuses_a_rank_over_the_maximum_in_any_module(codes: Codes) -> None:
    """A28: the maximum is over modules, not `r`."""
    assert codes(mk(r=MAX_RANK + 1)) == ["rank_too_large"]
    one_module = mk(
        r=8,
        rank_pattern={"layers.1.mlp.up_proj": MAX_RANK + 1},
        ranks={"layers.1.mlp.up_proj": MAX_RANK + 1},
    )
    assert codes(one_module) == ["rank_too_large"]


def test_a_large_r_that_no_module_has_is_no_problem(judge: Judge) -> None:
    upload = mk(r=8, targets=["q_proj"], rank_pattern={"q_proj": 8}).configured(r=4 * MAX_RANK)
    assert judge(upload).max_rank == 8


def test_refuses_ranks_on_which_weights_and_configuration_disagree(
    codes: Codes, judge: Judge
) -> None:
    """A33."""
    assert codes(mk(r=8).configured(r=16)) == ["rank_mismatch"]
    assert codes(mk(r=8, rank_pattern={"q_proj": 4})) == ["rank_mismatch"]
    assert codes(mk(r=8, ranks={"q_proj": 4})) == ["rank_mismatch"]
    message = judge(mk(r=8).configured(r=16)).problems[0].message
    assert "rank 8" in message
    assert "16" in message


def test_refuses_an_adapter_of_another_width_naming_both_shapes(judge: Judge) -> None:
    """A29 (i)."""
    name = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"
    upload = mk().with_tensors({name: np.ones((8, 96))})
    report = judge(upload)
    assert [(p.code, p.field) for p in report.problems] == [("shape_mismatch", name)]
    assert "[8, 96]" in report.problems[0].message
    assert "[8, 64]" in report.problems[0].message


def swapped(upload: Upload) -> Upload:
    """lora_A holds B transposed and lora_B holds A transposed."""
    tensors = {}
    for name, tensor in upload.tensors.items():
        other = name.replace("lora_A", "lora_*").replace("lora_B", "lora_A")
        tensors[other.replace("lora_*", "lora_B")] = replace(tensor, array=tensor.array.T)
    return Upload(upload.config, {k: replace(v, array=v.array.copy()) for k, v in tensors.items()})


def test_refuses_exchanged_halves_where_shapes_show_it(judge: Judge, codes: Codes) -> None:
    """A34 (i): k_proj, 64 in and 32 out."""
    upload = swapped(mk(targets=["k_proj"], layers=[0]))
    assert codes(upload) == ["shape_mismatch"]
    problems = judge(upload).problems
    assert len(problems) == 2
    assert "[8, 32], expected [8, 64]" in problems[0].message + problems[1].message


def test_serves_exchanged_halves_as_peft_does_where_shapes_cannot_show_it(judge: Judge) -> None:
    """A34 (ii): q_proj, 64 in and 64 out."""
    upload = mk(targets=["q_proj"], layers=[0])
    adapter = judge.accepted(swapped(upload))
    module = adapter.modules["layers.0.q_proj"]
    uploaded_b = upload.tensors[f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.weight"]
    assert np.array_equal(module.lora_a, uploaded_b.array.T)


@pytest.mark.parametrize("shape", [(8,), (8, 64, 1), (64, 8)])
def test_refuses_tensors_of_another_form(shape: tuple[int, ...], codes: Codes) -> None:
    name = f"{PREFIX}model.layers.0.self_attn.k_proj.lora_A.weight"
    assert codes(mk().with_tensors({name: np.ones(shape)})) == ["shape_mismatch"]


def test_a_fused_projection_is_split_into_rows_of_the_same_product(judge: Judge) -> None:
    """A23: q, k and v take 64, 32 and 32 rows, not thirds."""
    shapes = BaseShapes.from_config({**TINY_BASE, "model_type": "phi3"})
    random = np.random.default_rng(0)
    tensors = {}
    for module, rows in (("self_attn.qkv_proj", 128), ("mlp.gate_up_proj", 256)):
        path = f"{PREFIX}model.layers.1.{module}"
        tensors[f"{path}.lora_A.weight"] = Tensor.of(random.normal(size=(8, 64)))
        tensors[f"{path}.lora_B.weight"] = Tensor.of(random.normal(size=(rows, 8)), "F16")
    upload = Upload(mk().config, tensors).configured(target_modules=["qkv_proj", "gate_up_proj"])
    adapter = judge.accepted(upload, shapes=shapes)
    for module, targets in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
        path = f"{PREFIX}model.layers.1.{module}_proj"
        parts = [adapter.modules[f"layers.1.{target}_proj"] for target in targets]
        whole = tensors[f"{path}.lora_B.weight"].array
        assert np.array_equal(np.concatenate([part.lora_b for part in parts]), whole)
        for part in parts:
            assert np.array_equal(part.lora_a, tensors[f"{path}.lora_A.weight"].array)
    assert len(adapter.modules) == 5
    assert adapter.modules["layers.1.q_proj"].lora_b.shape == (64, 8)
    assert judge(mk(), shapes=shapes).ref is None


def test_a_base_of_unknown_layout_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedBaseError, match="'mamba'"):
        BaseShapes.from_config({**TINY_BASE, "model_type": "mamba"})
    with pytest.raises(UnsupportedBaseError, match="vocab_size"):
        BaseShapes.from_config({k: v for k, v in TINY_BASE.items() if k != "vocab_size"})
