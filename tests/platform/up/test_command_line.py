"""What `tenora up` refuses, and that it says which flag to change."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tenora_platform.up.folder import DataFolder, lock_data_folder


def tenora(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "tenora_platform", *arguments],
        env={"PATH": os.environ["PATH"], "COLUMNS": "200", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_up_without_a_model_names_both_ways(root: Path) -> None:
    result = tenora("up", "--data", str(root))
    assert result.returncode == 1
    assert "--model" in result.stderr
    assert "--demo" in result.stderr
    assert not root.exists()


def test_up_refuses_a_folder_that_is_no_model(root: Path, tmp_path: Path) -> None:
    result = tenora("up", "--data", str(root), "--model", str(tmp_path))
    assert result.returncode == 1
    assert "config.json" in result.stderr


def test_up_names_the_flag_of_a_port_in_use(root: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = tenora("up", "--data", str(root), "--model", str(model), "--port", str(port))
    assert result.returncode == 1
    assert "--port" in result.stderr
    assert "Traceback" not in result.stderr


def test_up_names_the_flag_of_a_folder_in_use(folder: DataFolder, model: Path) -> None:
    lock = lock_data_folder(folder)
    try:
        result = tenora("up", "--data", str(folder.root), "--model", str(model))
    finally:
        os.close(lock)
    assert result.returncode == 1
    assert "--data" in result.stderr


def test_role_without_settings_names_the_variable() -> None:
    for role in ("api", "worker", "migrate"):
        result = tenora(role)
        assert result.returncode == 1
        assert "TENORA_DATABASE_URL" in result.stderr
        assert "Traceback" not in result.stderr


def test_openapi_needs_no_settings() -> None:
    result = tenora("openapi")
    assert result.returncode == 0, result.stderr
    assert "/v1/chat/completions" in result.stdout
