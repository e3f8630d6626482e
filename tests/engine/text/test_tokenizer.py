"""Which ids end an answer, which are no tokens, and how raw prompts are read."""

import json
import shutil
from pathlib import Path

import pytest

from tenora_engine.text.token_bytes import UnsupportedTokenizerError
from tenora_engine.text.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    MODEL_VOCAB_SIZE,
    byte_ids,
)


def test_end_ids_are_the_union_of_all_declarations(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(byte_level_folder, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": END_OF_TEXT}))
    assert Tokenizer(folder).eos_token_ids == {7, END_OF_TEXT, IM_END}


def test_rows_without_a_token_are_named(byte_level: Tokenizer) -> None:
    assert byte_level.unassigned_ids(MODEL_VOCAB_SIZE) == tuple(range(265, MODEL_VOCAB_SIZE))


def test_raw_text_reads_special_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.encode("<|im_start|>x") == [IM_START, ord("x")]


def test_every_byte_has_its_token(byte_level: Tokenizer) -> None:
    table = byte_level.token_bytes().table
    assert table[:256] == tuple(bytes([byte]) for byte in range(256))
    assert table[byte_level.vocab["Ġwo"]] == b" wo"
    assert byte_ids("é") == (0xC3, 0xA9)


def test_only_one_bos_where_the_text_brings_its_own(
    sentencepiece_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sentencepiece_folder, tmp_path / "model")
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text())
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    description["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(description))
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("lead")[0] == 1
    assert tokenizer.encode("<s>lead").count(1) == 1
    assert tokenizer.encode("") == [1]


def test_digest_follows_the_files(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(byte_level_folder, tmp_path / "model")
    assert Tokenizer(folder).digest == Tokenizer(byte_level_folder).digest
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert Tokenizer(folder).digest != Tokenizer(byte_level_folder).digest


def test_unknown_kind_of_tokenizer_is_refused(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(byte_level_folder, tmp_path / "model")
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text())
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(description))
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        Tokenizer(folder).token_bytes()
