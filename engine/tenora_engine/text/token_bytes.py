"""The bytes that each token id stands for, read from a tokenizer's own description."""

import re
from dataclasses import dataclass
from typing import Any

_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class UnsupportedTokenizerError(ValueError):
    """The tokenizer is of a kind whose tokens have no fixed bytes."""


@dataclass(frozen=True)
class TokenBytes:
    """`table[id]` is the token's UTF-8; empty for special tokens and for ids without a token."""

    table: tuple[bytes, ...]
    marks_first_word: bool
    """The first word of a text carries a space that is not part of the text."""


def build_token_bytes(
    description: dict[str, Any], *, vocab: dict[str, int], silent_ids: frozenset[int], size: int
) -> TokenBytes:
    """Make the table of `size` ids for a `tokenizer.json`.

    `vocab` is every token by its text, added ones included; `silent_ids` get no bytes.

    Raises:
        UnsupportedTokenizerError: neither byte-level BPE nor SentencePiece style.
    """
    decoders = _flatten(description.get("decoder"), "decoders")
    kinds = {part["type"] for part in decoders}
    added = {token["id"] for token in description.get("added_tokens", ())}
    table = [b""] * size
    if "ByteLevel" in kinds:
        for text, token in vocab.items():
            if token < size and token not in silent_ids:
                table[token] = text.encode() if token in added else _byte_level_bytes(text)
    elif _is_sentencepiece(decoders):
        for text, token in vocab.items():
            if token < size and token not in silent_ids:
                table[token] = _sentencepiece_bytes(text)
    else:
        raise UnsupportedTokenizerError(
            f"The tokenizer decodes with {sorted(kinds) or 'nothing'}; supported are byte-level "
            "BPE and SentencePiece-style tokenizers."
        )
    return TokenBytes(tuple(table), marks_first_word=_marks_first_word(decoders))


def _flatten(part: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    """The leaves of a component that may be a sequence of components."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for child in part[children] for leaf in _flatten(child, children)]
    return [part]


def _is_sentencepiece(decoders: list[dict[str, Any]]) -> bool:
    return any(
        part["type"] in {"Metaspace", "ByteFallback"}
        or (part["type"] == "Replace" and part["pattern"].get("String") == _SPACE_MARK)
        for part in decoders
    )


def _marks_first_word(decoders: list[dict[str, Any]]) -> bool:
    return any(
        (part["type"] == "Strip" and part.get("content") == " " and part.get("start", 0) > 0)
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in decoders
    )


def _sentencepiece_bytes(text: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace(_SPACE_MARK, " ").encode()


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in text])
    except KeyError:
        return text.encode()  # not written in the byte alphabet, so it stands for itself


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
