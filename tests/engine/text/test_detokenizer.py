"""Detokenizing: whole characters, exact text, for both kinds of tokenizers."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.text.answer_text import AnswerText
from tenora_engine.text.detokenizer import Detokenizer
from tenora_engine.text.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import IM_END, MODEL_VOCAB_SIZE

SCRIPTS = [
    "plain",
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",  # a family, joined
    "\U0001f1e9\U0001f1ea",  # a flag
    "漢字かな",
    "مرحبا",
    "e\u0301",
    "    indented",
]


def detokenize(tokenizer: Tokenizer, pieces: list[list[int]], *, starts: bool = False) -> list[str]:
    detokenizer = Detokenizer(tokenizer.token_bytes(), starts_text=starts)
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.flush()]


@pytest.mark.parametrize("text", SCRIPTS)
def test_byte_by_byte_gives_whole_characters_only(byte_level: Tokenizer, text: str) -> None:
    out = detokenize(byte_level, [[byte] for byte in text.encode()])
    assert "".join(out) == text
    assert "\ufffd" not in "".join(out)
    assert all(len(piece) <= 1 for piece in out)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"ok\xf0\x9f", "ok\ufffd"),  # half an emoji: one maximal part
        (b"\xc0\x80", "\ufffd\ufffd"),  # overlong
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate
        (b"\xf0\x9fA", "\ufffdA"),
    ],
)
def test_invalid_bytes_become_one_replacement_per_maximal_part(
    byte_level: Tokenizer, data: bytes, expected: str
) -> None:
    assert "".join(detokenize(byte_level, [[byte] for byte in data])) == expected


def test_special_tokens_have_no_text_and_break_no_character(byte_level: Tokenizer) -> None:
    head, tail = list("é".encode())
    assert "".join(detokenize(byte_level, [[head], [IM_END], [tail]])) == "é"


def test_ids_without_a_token_have_no_text(byte_level: Tokenizer) -> None:
    assert "".join(detokenize(byte_level, [[MODEL_VOCAB_SIZE - 1]])) == ""


def test_sentencepiece_keeps_the_space_of_a_continued_text(sentencepiece: Tokenizer) -> None:
    lead, x = sentencepiece.vocab["▁lead"], sentencepiece.vocab["▁x"]
    assert detokenize(sentencepiece, [[lead], [x]]) == [" lead", " x", ""]


def test_sentencepiece_drops_one_space_where_a_text_starts(sentencepiece: Tokenizer) -> None:
    lead, x = sentencepiece.vocab["▁lead"], sentencepiece.vocab["▁x"]
    assert detokenize(sentencepiece, [[lead], [x]], starts=True) == ["lead", " x", ""]


def test_sentencepiece_byte_tokens_join_to_characters(sentencepiece: Tokenizer) -> None:
    ids = [3 + byte for byte in "\U0001f600".encode()]
    out = detokenize(sentencepiece, [[token] for token in ids])
    assert out == ["", "", "", "\U0001f600", ""]


@given(data=st.data())
def test_sentencepiece_equals_the_library(
    sentencepiece: Tokenizer, sentencepiece_folder: Path, data: st.DataObject
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(sentencepiece_folder / "tokenizer.json"))
    text = data.draw(st.text("lead x\U0001f600é", max_size=12))
    ids = sentencepiece.encode(text)
    pieces = [[token] for token in ids]
    assert "".join(detokenize(sentencepiece, pieces, starts=True)) == backend.decode(ids)


@given(data=st.data())
def test_stream_equals_non_stream(byte_level: Tokenizer, data: st.DataObject) -> None:
    """Any script, any stop strings, any cutting into steps: the same text and the same count."""
    ids = data.draw(st.lists(st.integers(0, MODEL_VOCAB_SIZE - 1), max_size=30))
    stops = data.draw(st.lists(st.text("ab\ufffdhelo ", min_size=1, max_size=3), max_size=4))
    table = byte_level.token_bytes()
    whole = _answer(AnswerText(table, stops=stops), [ids])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert _answer(AnswerText(table, stops=stops), pieces) == whole
    if not stops:
        assert whole[0] == b"".join(table.table[i] for i in ids).decode(errors="replace")


def _answer(answer: AnswerText, pieces: list[list[int]]) -> tuple[str, int, bool]:
    text, count = "", 0
    for ids in pieces:
        piece = answer.push(ids)
        text, count = text + piece.text, count + piece.num_tokens
        if piece.stopped:
            return text, count, True
    piece = answer.flush()
    return text + piece.text, count, piece.stopped


def test_stop_completed_by_a_token_counts_that_token_and_no_later_one(
    byte_level: Tokenizer,
) -> None:
    answer = AnswerText(byte_level.token_bytes(), stops=["lo w"])
    hello, word = byte_level.vocab["hello"], byte_level.vocab["Ġwo"]
    piece = answer.push([hello, word, *b"rld"])
    assert piece == ("hel", 2, True)


def test_stop_with_a_split_emoji_is_found(byte_level: Tokenizer) -> None:
    answer = AnswerText(byte_level.token_bytes(), stops=["\U0001f600!"])
    piece = answer.push(list("a\U0001f600!b".encode()))
    assert piece == ("a", 6, True)
