import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

FOLDER = Path(__file__).parents[2] / "examples" / "adapters"
NAMES = ("support-json", "pirate", "couplet")
MAX_BYTES = 2_000_000
# Rows by columns of the projections that adapters change, in SmolLM2-135M.
SHAPES = {
    "q_proj": (576, 576),
    "k_proj": (192, 576),
    "v_proj": (192, 576),
    "o_proj": (576, 576),
    "gate_proj": (1536, 576),
    "up_proj": (1536, 576),
    "down_proj": (576, 1536),
}

each_adapter = pytest.mark.parametrize("name", NAMES)


def _config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FOLDER / name / "adapter_config.json").read_text())
    return config


def _weights(name: str) -> dict[str, torch.Tensor]:
    return load_file(FOLDER / name / "adapter_model.safetensors")


def _script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the examples, which find each other by their folder like any script."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


def _tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=16, **shape, **heads, initializer_range=0.5)
    return LlamaForCausalLM(config).eval()


def _rank(config: dict[str, Any], module: str) -> int:
    """PEFT's rule: the first pattern that is the module's name or a dotted end of it."""
    patterns: dict[str, int] = config["rank_pattern"]
    matching = (rank for key, rank in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return int(next(matching, config["r"]))


@each_adapter
def test_folder_is_small_and_holds_only_the_adapter(name: str) -> None:
    files = {path.name: path.stat().st_size for path in (FOLDER / name).iterdir()}
    assert set(files) == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(files.values()) <= MAX_BYTES


@each_adapter
def test_config_names_the_public_base_model_and_no_local_path(name: str) -> None:
    config = _config(name)
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert config["peft_type"] == "LORA"
    assert config["task_type"] == "CAUSAL_LM"
    assert config["inference_mode"] is True
    assert not re.search(r'"[/~.]', json.dumps(config))


def test_adapters_have_different_shapes() -> None:
    support, pirate, couplet = (_config(name) for name in NAMES)
    assert support["r"] == 8
    assert set(support["target_modules"]) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert pirate["r"] == 3
    assert pirate["use_rslora"] is True
    assert set(pirate["target_modules"]) == set(couplet["target_modules"]) == set(SHAPES)
    assert couplet["layers_to_transform"] == list(range(15, 30))
    assert set(couplet["rank_pattern"].values()) == {2, 8, 12}


@each_adapter
def test_tensors_are_exactly_those_the_config_asks_for(name: str) -> None:
    config = _config(name)
    expected = {}
    for layer in config["layers_to_transform"] or range(30):
        for target in config["target_modules"]:
            block = "self_attn" if SHAPES[target][0] != 1536 and target != "down_proj" else "mlp"
            module = f"model.layers.{layer}.{block}.{target}"
            rank, (rows, columns) = _rank(config, module), SHAPES[target]
            expected[f"base_model.model.{module}.lora_A.weight"] = (rank, columns)
            expected[f"base_model.model.{module}.lora_B.weight"] = (rows, rank)
    assert {key: tuple(value.shape) for key, value in _weights(name).items()} == expected


@each_adapter
def test_weights_are_bf16_finite_and_trained_away_from_zero(name: str) -> None:
    for key, value in _weights(name).items():
        assert value.dtype == torch.bfloat16, key
        assert value.isfinite().all(), key
        assert value.any(), key


@each_adapter
# Importing peft and building the model raise their libraries' own deprecations, not ours; a
# missing or unexpected adapter tensor is a UserWarning of peft's, and stays an error.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_peft_loads_every_tensor(name: str) -> None:
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    with torch.device("meta"):
        base = LlamaForCausalLM(LlamaConfig(vocab_size=8, **shape, **heads))
    base.to_empty(device="cpu")  # the base model's own weights do not matter here
    model = PeftModel.from_pretrained(base, FOLDER / name)
    loaded = get_peft_model_state_dict(model, save_embedding_layers=False)
    stored = _weights(name)
    assert loaded.keys() == stored.keys()
    assert all(torch.equal(loaded[key].to(torch.bfloat16), stored[key]) for key in stored)


@each_adapter
def test_training_data_is_reproducible_and_without_held_out_questions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _script("data", monkeypatch)
    drawn = data.training_examples(name, 500, seed=1)
    assert drawn == data.training_examples(name, 500, seed=1)
    assert drawn != data.training_examples(name, 500, seed=2)
    assert not {each.question for each in drawn} & set(data.held_out_questions(name))


# The training script imports peft, whose deprecations are not ours.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_packed_batch_has_the_loss_of_separate_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    train = _script("train", monkeypatch)
    base = _tiny_llama()
    holder = SimpleNamespace(get_base_model=lambda: base)
    batch = [
        train.Tokens([1, 2, 3, 4, 5, 6], 4),
        train.Tokens([1, 2, 7, 8, 9], 3),
        train.Tokens([1, 2, 7, 9, 9, 9], 3),
    ]
    alone = [
        functional.cross_entropy(
            base(torch.tensor([each.token_ids])).logits[0, each.prompt_tokens - 1 : -1],
            torch.tensor(each.token_ids[each.prompt_tokens :]),
            reduction="none",
        )
        for each in batch
    ]
    torch.testing.assert_close(train.answer_loss(holder, batch), torch.cat(alone).mean())


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("I sing at night,", "by candle light.", True),
        ("a cup of tea,", "enough for me.", True),
        ("at close of day,", "by candle light.", False),
        ("for you,", "and you.", False),
        ("on the table", "by the sea", False),
        ("", "by the sea", False),
    ],
)
def test_rhyme_measure_tells_rhymes_from_other_endings(
    first: str, second: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _script("texts.couplet", monkeypatch).rhymes(first, second) is expected


def test_every_taught_couplet_rhymes(monkeypatch: pytest.MonkeyPatch) -> None:
    rhymes = _script("texts.couplet", monkeypatch).rhymes
    drawn = _script("data", monkeypatch).training_examples("couplet", 1000)
    assert [each for each in drawn if not rhymes(*each.answer.split("\n"))] == []
