"""One installation for all end-to-end tests; they share it, so they run on one worker."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import REPOSITORY, Installation


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    cache = Path(os.environ.get("TENORA_TEST_CACHE") or REPOSITORY / ".cache")
    installation = Installation(
        tmp_path_factory.mktemp("up") / "data",
        model_cache=cache / "smollm2-135m-instruct",
        environ={"TENORA_ENGINE_WEIGHT_DTYPE": "float32"},
    )
    try:
        installation.start()
        yield installation
    finally:
        left_over = installation.stop()
    assert left_over == []


@pytest.fixture(autouse=True)
def _closed_clients(installation: Installation) -> Iterator[None]:
    """SDK clients of a test end with it."""
    yield
    installation.close_clients()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all end-to-end tests on the worker that holds the installation."""
    for item in items:
        if "tests/e2e/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("e2e"))
            item.add_marker(pytest.mark.model)
