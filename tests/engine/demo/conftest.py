"""The converted demo model: made once, kept between runs, shared by every test that asks."""

import os
import warnings
from pathlib import Path

import pytest

from tenora_engine.demo.base_model import convert_demo_model

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """The folder of the converted model, below TENORA_TEST_CACHE or the repository's cache."""
    cache = Path(os.environ.get("TENORA_TEST_CACHE", REPOSITORY / ".cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own deprecations are not ours to fix
        return convert_demo_model(cache / "smollm2-135m-instruct")
