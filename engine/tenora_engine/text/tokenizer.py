"""A Hugging Face folder's tokenizer: encode, and know which ids end, which are silent.

Reads `tokenizer.json` with the `tokenizers` library; the other files only add token names.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from tenora_engine.text.control_tokens import ControlTokens
from tenora_engine.text.token_bytes import (
    TokenBytes,
    UnsupportedTokenizerError,
    build_token_bytes,
)

_DIGESTED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class Tokenizer:
    """Immutable and safe to use from several threads; encoding releases the interpreter lock."""

    def __init__(self, folder: Path) -> None:
        """Load from `folder`.

        Raises:
            FileNotFoundError: there is no `tokenizer.json`.
            UnsupportedTokenizerError: neither byte-level BPE nor SentencePiece style.
        """
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._description: dict[str, Any] = json.loads(text)
        self._config = _read_json(folder / "tokenizer_config.json")
        self._backend = _parse(text)
        self._backend.no_truncation()
        self._backend.no_padding()
        self.digest = _digest(folder)
        """SHA-256 (hex) over the files that decide how text becomes ids and where output ends."""
        self.named_tokens = _named_tokens(self._config, folder)
        """Texts of `bos_token`, `eos_token` and so on, as chat templates use them."""
        self.vocab = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self.vocab.values()) + 1
        config = _read_json(folder / "config.json")
        declared = (config.get("text_config") or config).get("vocab_size")
        self.model_vocab_size: int = max(declared or 0, self.vocab_size)
        """Rows of the model's vocabulary: those above the tokens are padding."""
        self.eos_token_ids = self._find_eos_token_ids(folder)
        """Every declared end of output: generation, model and tokenizer configuration united."""
        self.special_token_ids = self.eos_token_ids | {
            token["id"] for token in self._added_tokens if token["special"]
        }
        self.longest_token_bytes = max(len(text.encode()) for text in self.vocab)
        first = self._backend.encode("", add_special_tokens=True).ids
        self._added_bos = first[0] if first else None

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt: special-token text counts as special tokens, one BOS at most."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=True).ids
        if self._added_bos is not None and ids[:2] == [self._added_bos] * 2:
            del ids[0]  # the text brought its own
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered chat template, which writes all special tokens itself."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """What keeps message content from forging special tokens; made when first needed."""
        tokens = [token for token in self._added_tokens if token["id"] in self.special_token_ids]
        return ControlTokens(self._description, tokens)

    def token_bytes(self) -> TokenBytes:
        """The bytes of every id that the model can name."""
        return build_token_bytes(
            self._description,
            vocab=self.vocab,
            silent_ids=frozenset(self.special_token_ids),
            size=self.model_vocab_size,
        )

    def unassigned_ids(self, model_vocab_size: int) -> tuple[int, ...]:
        """Rows of the model's vocabulary that are no token, ascending; never to be sampled."""
        assigned = set(self.vocab.values())
        return tuple(token for token in range(model_vocab_size) if token not in assigned)

    @property
    def default_template(self) -> object:
        """The `chat_template` entry of `tokenizer_config.json`, as it stands there."""
        return self._config.get("chat_template")

    @property
    def _added_tokens(self) -> list[dict[str, Any]]:
        return self._description.get("added_tokens") or []

    def _find_eos_token_ids(self, folder: Path) -> frozenset[int]:
        found: set[object] = {self.vocab.get(self.named_tokens.get("eos_token", ""))}
        for name in ("generation_config.json", "config.json"):
            config = _read_json(folder / name)
            for source in (config, config.get("text_config") or {}):
                declared = source.get("eos_token_id")
                found.update(declared if isinstance(declared, list) else [declared])
        return frozenset(token for token in found if isinstance(token, int))


def _parse(text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise UnsupportedTokenizerError(
            f"The model's tokenizer.json is damaged: {error}"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _named_tokens(config: dict[str, Any], folder: Path) -> dict[str, str]:
    merged = _read_json(folder / "special_tokens_map.json") | config
    named = {}
    for name in _NAMED_TOKENS:
        token = merged.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            named[name] = text
    return named


def _digest(folder: Path) -> str:
    digest = hashlib.sha256(b"tenora-tokenizer-v1")
    for name in _DIGESTED_FILES:
        path = folder / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(b"%d:%s%d:" % (len(name), name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()
