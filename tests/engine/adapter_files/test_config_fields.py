"""Every field of adapter_config.json is read, ignored for a reason, or refused by name."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tenora_engine.adapter_files import field_policy
from tenora_engine.adapter_files.config_fields import MAX_CONFIG_BYTES, read_config
from tenora_engine.adapter_files.findings import Findings
from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import mk

Codes = Callable[..., list[str]]


def problems_of(raw: bytes) -> list[tuple[str, str | None]]:
    findings = Findings()
    read_config(raw, findings)
    return [(problem.code, problem.field) for problem in findings.problems()]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("use_dora", True, "dora_unsupported"),
        ("bias", "lora_only", "bias_unsupported"),
        ("bias", "all", "bias_unsupported"),
        ("lora_bias", True, "bias_unsupported"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("trainable_token_indices", [1, 2], "modules_to_save"),
        ("trainable_token_indices", {"embed_tokens": [1]}, "modules_to_save"),
        ("target_parameters", ["mlp.experts.down_proj"], "target_parameters_unsupported"),
        ("layer_replication", [[0, 4], [2, 4]], "layer_replication_unsupported"),
        ("use_qalora", True, "qalora_unsupported"),
        ("alora_invocation_tokens", [1, 2], "alora_unsupported"),
        ("use_bdlora", {"nblocks": 2}, "variant_unsupported"),
        ("arrow_config", {"top_k": 3}, "variant_unsupported"),
        ("kasa_config", {"beta": 0.1}, "base_modified_init"),
        ("peft_type", "LOHA", "peft_type_unsupported"),
        ("peft_type", None, "peft_type_unsupported"),
        ("init_lora_weights", "pissa", "base_modified_init"),
        ("init_lora_weights", "pissa_niter_16", "base_modified_init"),
        ("init_lora_weights", "olora", "base_modified_init"),
        ("init_lora_weights", "corda", "base_modified_init"),
        ("init_lora_weights", "loftq", "base_modified_init"),
        ("init_lora_weights", "lora_ga", "base_modified_init"),
        ("init_lora_weights", "novel", "unknown_semantics"),
        ("init_lora_weights", {"a": 1}, "unknown_semantics"),
        ("some_new_field", 0, "unknown_semantics"),
        ("some_new_field", "on", "unknown_semantics"),
        ("use_rslora", "true", "invalid_field"),
        ("use_rslora", 1, "invalid_field"),
        ("target_modules", None, "missing_field"),
        ("target_modules", ["q_proj", 3], "invalid_field"),
        ("target_modules", {"q_proj": 1}, "invalid_field"),
        ("target_modules", "(q_proj", "invalid_pattern"),
        ("exclude_modules", "(q_proj", "invalid_pattern"),
        ("exclude_modules", 7, "invalid_field"),
        ("rank_pattern", ["q_proj"], "invalid_field"),
        ("rank_pattern", {"(q_proj": 4}, "invalid_pattern"),
        ("layers_to_transform", ["1"], "invalid_field"),
        ("layers_to_transform", [True], "invalid_field"),
    ],
)
def test_refuses_field_by_name(
    field: str, value: Any, code: str, codes: Codes, judge: Judge
) -> None:
    """A15, A16, A18, A19, A26 and more."""
    upload = mk().configured(**{field: value})
    assert codes(upload) == [code]
    assert [problem.field for problem in judge(upload).problems] == [field]


@pytest.mark.parametrize("value", [True, False, "gaussian", "eva", "mica", None])
def test_accepts_inits_that_leave_the_base_alone(value: Any, judge: Judge) -> None:
    judge.accepted(mk(init_lora_weights=value))


def test_accepts_unknown_fields_that_are_null_false_or_empty(judge: Judge) -> None:
    fields: dict[str, Any] = {
        "new_a": None,
        "new_b": False,
        "new_c": {},
        "new_d": [],
        "new_e": None,
        "new_f": {},
    }
    judge.accepted(mk(**fields))


def test_accepts_known_fields_that_are_harmless(judge: Judge) -> None:
    fields: dict[str, Any] = {name: {"any": 1} for name in field_policy.IGNORED}
    fields |= {"lora_dropout": 0.1, "inference_mode": True, "runtime_config": {"x": 1}}
    assert judge(mk(**fields)).warnings == ()


def test_a_saved_peft_configuration_is_covered_by_the_policy() -> None:
    tables = [field_policy.HANDLED, field_policy.IGNORED.keys(), field_policy.REFUSED.keys()]
    assert sum(len(table) for table in tables) == len(set().union(*tables))


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("lora_alpha", None, "missing_field"),
        ("lora_alpha", "16", "invalid_field"),
        ("lora_alpha", True, "invalid_field"),
        ("lora_alpha", [16], "invalid_field"),
        ("r", None, "missing_field"),
        ("r", 8.0, "invalid_field"),
        ("r", "8", "invalid_field"),
        ("r", True, "invalid_field"),
        ("r", 0, "invalid_rank"),
        ("r", -4, "invalid_rank"),
    ],
)
def test_refuses_a_missing_or_ill_typed_number_by_name(
    field: str, value: Any, code: str, codes: Codes, judge: Judge
) -> None:
    """A28 (r = 0), A33."""
    upload = mk().configured(**{field: value})
    assert codes(upload) == [code]
    assert judge(upload).problems[0].field == field


@pytest.mark.parametrize("field", ["lora_alpha", "r"])
def test_never_replaces_an_absent_number_by_a_default(field: str, codes: Codes) -> None:
    assert codes(mk().without_field(field)) == ["missing_field"]


@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "Infinity", "9" * 400])
def test_refuses_a_scale_that_is_not_finite(text: str) -> None:
    raw = json.dumps(mk().configured(lora_alpha="HERE").config).replace('"HERE"', text)
    assert problems_of(raw.encode()) == [("non_finite", "lora_alpha")]


@pytest.mark.parametrize("alpha", [0, -8, 0.5])
def test_serves_zero_and_negative_scales_exactly(alpha: float, judge: Judge) -> None:
    adapter = judge.accepted(mk(r=8, alpha=alpha))
    assert {module.scaling for module in adapter.modules.values()} == {alpha / 8}


def test_warns_that_a_zero_scale_has_no_effect(judge: Judge) -> None:
    assert [warning.code for warning in judge(mk(alpha=0)).warnings] == ["zero_scaling"]


def test_pattern_values_are_numbers_too() -> None:
    config = mk(rank_pattern={"q_proj": 0}, alpha_pattern={"k_proj": None}).config
    assert problems_of(json.dumps(config).encode()) == [
        ("invalid_rank", "rank_pattern[q_proj]"),
        ("missing_field", "alpha_pattern[k_proj]"),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": "all-linear", "layers_to_transform": [1]},
        {"target_modules": ".*q_proj", "layers_to_transform": []},
        {"target_modules": ".*q_proj", "layers_pattern": "layers"},
        {"layers_pattern": "layers"},
    ],
)
def test_refuses_layer_selections_that_peft_refuses(fields: dict[str, Any], codes: Codes) -> None:
    assert codes(mk().configured(**fields)) == ["invalid_field"]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "config_invalid"),
        (b"{", "config_invalid"),
        (b"[]", "config_invalid"),
        (b'{"r": 8, "r": 16}', "config_invalid"),
        (b"\xff\xfe", "config_invalid"),
        (b"[" * 60_000, "config_invalid"),
        (b" " * (MAX_CONFIG_BYTES + 1), "config_too_large"),
    ],
)
def test_refuses_a_file_that_is_no_configuration(raw: bytes, code: str) -> None:
    assert problems_of(raw) == [(code, None)]


def test_reports_all_problems_at_once(codes: Codes) -> None:
    upload = mk().configured(use_dora=True, bias="all", lora_alpha=None, mystery=1)
    assert codes(upload) == [
        "dora_unsupported",
        "unknown_semantics",
        "bias_unsupported",
        "missing_field",
    ]


def test_hostile_text_is_escaped_and_bounded_in_messages(judge: Judge) -> None:
    upload = mk().configured(**{"evil\0\ud800" + "x" * 5000: "\0\ud800" * 5000})
    for problem in judge(upload).problems:
        text = problem.message + (problem.field or "")
        assert text.isprintable()
        text.encode("utf-8")
        assert len(text) < 1000


def test_more_than_a_handful_of_equal_problems_are_counted(judge: Judge) -> None:
    report = judge(mk().configured(**{f"field_{i}": 1 for i in range(50)}))
    assert len(report.problems) == 9
    assert report.problems[-1].message == "42 more of this kind are not listed."


@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({"base_model_name_or_path": "tenora/tiny"}, False),
        ({"base_model_name_or_path": "/mirror/Tiny/"}, False),
        ({"base_model_name_or_path": "/data/ckpt"}, True),
        ({"base_model_name_or_path": "org/b0-bnb-4bit"}, True),
        ({"base_model_name_or_path": None}, True),
        ({"revision": "main"}, False),
        ({"revision": "4f2a"}, True),
    ],
)
def test_another_base_name_is_a_warning(fields: dict[str, Any], warns: bool, judge: Judge) -> None:
    """A29 (iii)."""
    report = judge(mk(**fields))
    assert report.ref is not None
    assert [warning.code for warning in report.warnings] == ["base_name_differs"] * warns
    assert report.declared_base == fields.get("base_model_name_or_path", "tenora/tiny")


def test_fan_in_fan_out_and_task_type_are_noted(judge: Judge) -> None:
    report = judge(mk(fan_in_fan_out=True, task_type="SEQ_CLS"))
    assert report.ref is not None
    assert [w.code for w in report.warnings] == ["fan_in_fan_out_ignored", "other_task_type"]
