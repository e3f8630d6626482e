"""How a replica gets its settings."""

import json
from pathlib import Path

import pytest

from tenora_engine.__main__ import gather_settings
from tenora_engine.config import decode_config, encode_config, read_config
from tests.support.front import front_config

REQUIRED = {
    "model_dir": "/models/m",
    "base_model": "m",
    "run_dir": "/run/t",
    "state_dir": "/var/t",
    "object_store_url": "file:///o",
    "listen_url": "ipc:///run/t/e.sock",
}


def test_flags_override_environment_overrides_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"base_model": "file", "block_size": 8, "replica_id": "file"}))
    options = {"config": str(path), "base_model": "flag"}
    environment = {
        "TENORA_ENGINE_BASE_MODEL": "environment",
        "TENORA_ENGINE_REPLICA_ID": "environment",
        "OTHER": "x",
    }
    assert gather_settings(options, environment) == {
        "base_model": "flag",
        "replica_id": "environment",
        "block_size": 8,
    }


def test_text_becomes_numbers_paths_and_booleans() -> None:
    config = read_config(REQUIRED | {"block_size": "32", "prefix_cache": "false"})
    assert (config.block_size, config.prefix_cache) == (32, False)
    assert config.model_dir == Path("/models/m")


@pytest.mark.parametrize("change", [{"block_size": "many"}, {"colour": "red"}, {"model_dir": None}])
def test_wrong_settings_are_named(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        read_config(REQUIRED | change)


def test_settings_survive_the_way_to_the_child(tmp_path: Path) -> None:
    config = front_config(tmp_path, num_threads=2)
    assert decode_config(encode_config(config)) == config
