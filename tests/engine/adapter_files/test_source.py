"""Canonical files on a replica's disk: whole, verified, and fetched once."""

from pathlib import Path

import pytest

from tenora_engine.adapter_files.canonical import digest_of
from tenora_engine.adapter_files.source import AdapterSource
from tenora_engine.config import EngineConfig
from tenora_engine.protocol.errors import AdapterUnavailableError
from tests.engine.adapter_files.conftest import Judge
from tests.support.adapter_builder import mk


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(
        model_dir=tmp_path,
        base_model="tenora/tiny",
        run_dir=tmp_path,
        state_dir=tmp_path / "state",
        object_store_url=f"file://{tmp_path}/objects%20here",
        listen_url="ipc://unused",
    )


@pytest.fixture
def stored(judge: Judge, tmp_path: Path) -> Path:
    """A canonical file in the store, under its digest."""
    report = judge(mk())
    assert report.ref is not None
    path = tmp_path / "objects here" / "adapters" / f"{report.ref.digest}.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(judge.canonical_path.read_bytes())
    return path


def test_brings_the_file_to_the_cache_folder(config: EngineConfig, stored: Path) -> None:
    source = AdapterSource(config)
    digest = stored.stem
    assert not source.is_on_disk(digest)
    path = source.fetch(digest)
    assert path.parent == config.adapter_cache_dir
    assert digest_of(path) == digest
    assert source.is_on_disk(digest)
    assert [p.name for p in config.adapter_cache_dir.iterdir()] == [path.name]


def test_shares_the_bytes_with_a_store_on_the_same_disk(config: EngineConfig, stored: Path) -> None:
    path = AdapterSource(config).fetch(stored.stem)
    assert path.samefile(stored)


def test_downloads_where_the_store_cannot_be_linked(
    config: EngineConfig, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = AdapterSource(config)
    source._local_root = None  # as for a store on another machine
    path = source.fetch(stored.stem)
    assert not path.samefile(stored)
    assert path.read_bytes() == stored.read_bytes()


def test_a_file_that_is_here_needs_no_store(config: EngineConfig, stored: Path) -> None:
    AdapterSource(config).fetch(stored.stem)
    stored.unlink()
    restarted = AdapterSource(config)
    assert digest_of(restarted.fetch(stored.stem)) == stored.stem


def test_a_damaged_local_copy_is_replaced_after_a_restart(
    config: EngineConfig, stored: Path
) -> None:
    path = AdapterSource(config).fetch(stored.stem)
    path.unlink()
    path.write_bytes(b"damaged")
    assert digest_of(AdapterSource(config).fetch(stored.stem)) == stored.stem


@pytest.mark.parametrize("is_local", [True, False])
def test_a_damaged_stored_file_is_never_kept(
    is_local: bool, config: EngineConfig, stored: Path
) -> None:
    stored.write_bytes(stored.read_bytes()[:-1] + b"!")
    source = AdapterSource(config)
    if not is_local:
        source._local_root = None
    with pytest.raises(AdapterUnavailableError, match="damaged"):
        source.fetch(stored.stem)
    assert list(config.adapter_cache_dir.iterdir()) == []


@pytest.mark.parametrize("digest", ["0" * 64, "../../etc/passwd", "", "A" * 64])
def test_unknown_digests_are_unavailable(digest: str, config: EngineConfig) -> None:
    with pytest.raises(AdapterUnavailableError):
        AdapterSource(config).fetch(digest)
