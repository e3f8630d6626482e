"""Keeps text inside messages from becoming control tokens.

Before rendering, every control-token text in a message is replaced by a placeholder of private
characters; so is an edge character that could complete one together with neighbouring text.
After rendering, what looks like a control token was written by the template. The text between
is encoded by a twin of the tokenizer that knows no control tokens, with the placeholders turned
back into what they stood for: nothing is stripped, and nothing is forged.
"""

import copy
import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tokenizers

from tenora_engine.protocol.errors import InvalidRequestError

_MARK = "\U000f0000"
_FIRST_INDEX = 0xF1000
_PLACEHOLDER = re.compile(f"{_MARK}([{chr(_FIRST_INDEX)}-\U000ffffd])")


class Placeholders:
    """The texts that one request's placeholders stand for."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._texts)

    def hide(self, text: str) -> str:
        """A placeholder for `text`; equal texts share one."""
        if text not in self._texts:
            self._texts.append(text)
        return _MARK + chr(_FIRST_INDEX + self._texts.index(text))

    def reveal(self, text: str) -> str:
        """`text` with all placeholders turned back."""
        return _PLACEHOLDER.sub(lambda match: self._texts[ord(match[1]) - _FIRST_INDEX], text)


class ControlTokens:
    """Immutable; one `Placeholders` goes along with each request."""

    def __init__(self, description: dict[str, Any], tokens: Sequence[dict[str, Any]]) -> None:
        """`tokens` are the control tokens among the added tokens of a `tokenizer.json`."""
        self._ids = {token["content"]: int(token["id"]) for token in tokens}
        self._ids_of_control = frozenset(self._ids.values())
        self._in_content = _alternation([*self._ids, _MARK])
        self._in_rendered = re.compile(
            "|".join(_pattern(token) for token in _longest_first(tokens)) or "(?!)"
        )
        self._heads = {text[:size] for text in self._ids for size in range(1, len(text))}
        self._tails = {text[size:] for text in self._ids for size in range(1, len(text))}
        self._longest = max(map(len, self._ids), default=0)
        self._adds_space_first = _prepends_space_to_first_word(description)
        self._description = description

    def hide(self, text: str, placeholders: Placeholders) -> str:
        """`text` of a message in a form that cannot turn into a control token."""
        hidden = self._in_content.sub(lambda match: placeholders.hide(match[0]), text)
        return self._hide_tail_start(self._hide_head_end(hidden, placeholders), placeholders)

    def encode(self, rendered: str, placeholders: Placeholders) -> list[int]:
        """Ids of a rendered template whose messages went through `hide`.

        Raises:
            InvalidRequestError: the tokenizer makes a control token of plain text.
        """
        ids: list[int] = []
        end = 0
        for match in self._in_rendered.finditer(rendered):
            ids += self._encode_literal(placeholders.reveal(rendered[end : match.start()]), end)
            ids.append(self._ids[match[match.lastgroup or 0]])
            end = match.end()
        return ids + self._encode_literal(placeholders.reveal(rendered[end:]), end)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """Made when a placeholder first needs it; most processes never see one."""
        return _without_control_tokens(self._description, self._ids_of_control)

    def _encode_literal(self, text: str, start: int) -> list[int]:
        if not text:
            return []
        if start == 0 and self._adds_space_first and not text.startswith(" "):
            text = " " + text
        ids: list[int] = self._literal.encode(text, add_special_tokens=False).ids
        if not self._ids_of_control.isdisjoint(ids):
            raise InvalidRequestError(
                "A message contains control-token text that this model cannot read as plain text.",
                param="messages",
            )
        return ids

    def _hide_head_end(self, text: str, placeholders: Placeholders) -> str:
        """Hide the last visible character if the end of `text` could begin a control token."""
        visible = text.rstrip()
        for size in range(1, min(len(visible), self._longest - 1) + 1):
            if visible[-size:] in self._heads:
                return visible[:-1] + placeholders.hide(visible[-1]) + text[len(visible) :]
        return text

    def _hide_tail_start(self, text: str, placeholders: Placeholders) -> str:
        """Hide the first visible character if the start of `text` could end a control token."""
        visible = text.lstrip()
        for size in range(1, min(len(visible), self._longest - 1) + 1):
            if visible[:size] in self._tails:
                blank = text[: len(text) - len(visible)]
                return blank + placeholders.hide(visible[0]) + visible[1:]
        return text


def _longest_first(tokens: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(tokens, key=lambda token: len(token["content"]), reverse=True)


def _alternation(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _pattern(token: dict[str, Any]) -> str:
    """How the tokenizer finds this token in text, with the blanks that it swallows."""
    found = f"(?P<t{token['id']}>{re.escape(token['content'])})"
    if token["single_word"]:
        found = rf"(?<!\w){found}(?!\w)"
    return (r"\s*" if token["lstrip"] else "") + found + (r"\s*" if token["rstrip"] else "")


def _pre_tokenizers(description: dict[str, Any]) -> list[dict[str, Any]]:
    part = description.get("pre_tokenizer") or {}
    parts: list[dict[str, Any]] = part.get("pretokenizers", [part])
    return parts


def _prepends_space_to_first_word(description: dict[str, Any]) -> bool:
    return any(part.get("prepend_scheme") == "first" for part in _pre_tokenizers(description))


def _without_control_tokens(
    description: dict[str, Any], ids: frozenset[int]
) -> tokenizers.Tokenizer:
    """A twin that reads control-token text as plain text, and any text as the middle of one."""
    twin = copy.deepcopy({key: value for key, value in description.items() if key != "model"})
    twin["model"] = description["model"]
    twin["added_tokens"] = [token for token in twin["added_tokens"] if token["id"] not in ids]
    twin |= {"post_processor": None, "truncation": None, "padding": None}
    for part in _pre_tokenizers(twin):
        if part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
    return tokenizers.Tokenizer.from_str(json.dumps(twin))
