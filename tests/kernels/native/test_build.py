"""Building the C++ library: cached by content, refused with a reason, never half there."""

from pathlib import Path

import pytest

from tenora_kernels.errors import BackendUnavailableError
from tenora_kernels.native import build


def _fake_compiler(folder: Path, script: str) -> None:
    compiler = folder / "g++"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{script}\n')
    compiler.chmod(0o755)


def test_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailableError, match="install g\\+\\+"):
        build.built_library(tmp_path / "cache")


def test_a_failed_build_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_compiler(tmp_path, "echo 'no such instruction' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(BackendUnavailableError, match=r"status 3\): no such instruction"):
        build.built_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_build_that_cannot_run_here_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_compiler(tmp_path, 'for last; do :; done; echo garbage > "$last"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(BackendUnavailableError, match="wrong results on this machine"):
        build.built_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_folder_that_others_may_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    _fake_compiler(tmp_path, "exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(BackendUnavailableError):
        build.built_library(shared)
    assert not list(shared.iterdir())


def test_the_same_sources_are_built_once() -> None:
    first = build.built_library()
    changed_at = first.stat().st_mtime_ns
    assert build.built_library() == first
    assert first.stat().st_mtime_ns == changed_at
