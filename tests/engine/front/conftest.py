"""A folder with short paths, for sockets and journals."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    made = short_folder()
    yield made
    shutil.rmtree(made)
