"""A data folder whose path is short enough for sockets, which pytest's own often are not."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenora_platform.up.folder import DataFolder, open_data_folder


@pytest.fixture
def root() -> Iterator[Path]:
    """The path of a data folder that does not exist yet."""
    parent = Path(tempfile.mkdtemp(prefix="tenora-up-"))
    yield parent / "data"
    shutil.rmtree(parent)


@pytest.fixture
def folder(root: Path) -> DataFolder:
    """An open data folder."""
    return open_data_folder(root, {})
