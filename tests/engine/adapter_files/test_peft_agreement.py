"""Our reading of patterns, ranks and scales beside the installed PEFT's."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenora_engine.adapter_files.config_fields import read_config
from tenora_engine.adapter_files.field_policy import HANDLED, IGNORED, REFUSED
from tenora_engine.adapter_files.findings import Findings
from tenora_engine.adapter_files.lora_settings import read_settings
from tenora_engine.adapter_files.shapes import BaseShapes
from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import ALL_TARGETS, TINY_BASE

# PEFT warns about bitsandbytes, patterns and its own deprecations: nothing of it is ours.
pytestmark = pytest.mark.filterwarnings("ignore")

PATHS = tuple(BaseShapes.from_config(TINY_BASE).paths())

PATTERNS = (
    *ALL_TARGETS,
    "self_attn.q_proj",
    "layers.1.self_attn.q_proj",
    "model.layers.2.mlp.up_proj",
    "^model.layers.0.mlp.up_proj",
    ".*layers\\.3\\..*",
    ".*\\.(q|v)_proj",
    "(layers\\.[01]).*proj",
    "proj",
    "",
    "q_proj|k_proj",
    "ayers.1.mlp.up_proj",
    "mlp",
)


def test_selection_is_that_of_peft_for_random_configurations() -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists

    choose = random.Random(7)
    for _ in range(200):
        fields = _random_selection(choose)
        settings = read_settings({"r": 8, "lora_alpha": 8, **fields}, Findings())
        assert settings is not None, fields
        oracle = LoraConfig(**fields)
        for path in PATHS:
            found = check_target_module_exists(oracle, path)
            is_selected = bool(found) and not isinstance(found, _ExcludedModule)
            ours = settings.selection.field_against(path) is None
            assert ours == is_selected, (fields, path)


def _random_selection(choose: random.Random) -> dict[str, Any]:
    def names() -> str | list[str]:
        if choose.random() < 0.4:
            return choose.choice(PATTERNS)
        return choose.sample(PATTERNS, choose.randint(0, 4))

    fields: dict[str, Any] = {"target_modules": names()}
    if choose.random() < 0.3:
        fields["exclude_modules"] = names()
    if isinstance(fields["target_modules"], list) and choose.random() < 0.5:
        fields["layers_to_transform"] = choose.choice([1, [1, 2], [], [7]])
        fields["layers_pattern"] = choose.choice([None, "layers", ["h", "layers"], [], "blocks"])
    return fields


def test_ranks_and_scales_are_those_of_peft_for_random_patterns() -> None:
    import math

    from peft.utils.other import get_pattern_key

    choose = random.Random(11)
    for _ in range(200):
        ranks = {p: choose.randint(1, 64) for p in choose.sample(PATTERNS, choose.randint(0, 4))}
        alphas = {p: choose.randint(-8, 64) for p in choose.sample(PATTERNS, choose.randint(0, 4))}
        use_rslora = choose.random() < 0.5
        fields = {
            "r": 8,
            "lora_alpha": 24,
            "target_modules": "all-linear",
            "use_rslora": use_rslora,
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
        }
        settings = read_settings(fields, Findings())
        assert settings is not None
        for path in PATHS:
            rank = ranks.get(get_pattern_key(list(ranks), path), 8)
            alpha = alphas.get(get_pattern_key(list(alphas), path), 24)
            assert settings.rank_of(path) == rank
            assert settings.scaling_of(path) == alpha / (math.sqrt(rank) if use_rslora else rank)


def test_every_field_of_the_installed_peft_has_a_policy() -> None:
    """A field that a newer PEFT adds must be judged by a person before it is known."""
    import dataclasses

    from peft import LoraConfig

    known = HANDLED | IGNORED.keys() | REFUSED.keys()
    assert {field.name for field in dataclasses.fields(LoraConfig)} <= known


@pytest.mark.parametrize("use_rslora", [False, True])
def test_an_adapter_that_peft_saved_is_accepted_with_pefts_own_scales(
    use_rslora: bool, judge: Judge, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in TINY_BASE.items() if k != "dtype"}))
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        lora_alpha=12,
        use_rslora=use_rslora,
        target_modules="all-linear",
        exclude_modules=["up_proj"],
        rank_pattern={".*layers\\.3\\..*q_proj": 5, "down_proj": 3},
        alpha_pattern={"layers.1.self_attn.o_proj": 40},
        init_lora_weights=False,
    )
    model = get_peft_model(base, config)
    model.save_pretrained(str(tmp_path / "saved"))

    report = judge.files(tmp_path / "saved")
    assert report.problems == ()
    assert report.num_modules == 24
    adapter = judge.files_accepted(tmp_path / "saved")
    for name, module in adapter.modules.items():
        block = "self_attn" if name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")) else "mlp"
        layer, target = name.removeprefix("layers.").split(".")
        twin: Any = model.get_submodule(f"base_model.model.model.layers.{layer}.{block}.{target}")
        assert module.scaling == twin.scaling["default"]
        assert module.rank == twin.r["default"]
        assert np.array_equal(module.lora_a, twin.lora_A["default"].weight.detach().numpy())
        assert np.array_equal(module.lora_b, twin.lora_B["default"].weight.detach().numpy())


def test_a_plain_peft_configuration_raises_no_finding() -> None:
    import json

    from peft import LoraConfig

    config: Any = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], r=8)
    fields = {k: list(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    findings = Findings()
    assert read_config(json.dumps(fields).encode(), findings).settings is not None
    assert findings.problems() == findings.warnings() == ()
