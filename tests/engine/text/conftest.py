"""Tokenizers for the text tests."""

import os
from pathlib import Path

import pytest

from tenora_engine.text.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_byte_level_folder, write_sentencepiece_folder


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_level_folder(tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer(byte_level_folder)


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentencepiece_folder(tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: Path) -> Tokenizer:
    return Tokenizer(sentencepiece_folder)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model's folder, converted if this machine does not have it yet."""
    from tenora_engine.demo.base_model import convert_demo_model

    default = Path(__file__).resolve().parents[3] / ".cache"
    cache = Path(os.environ.get("TENORA_TEST_CACHE", default))
    return convert_demo_model(cache / "smollm2-135m-instruct")
