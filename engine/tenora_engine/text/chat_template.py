"""Renders messages through the model's own chat template, as Hugging Face does.

The template runs in a sandbox with bounded output, and sees plain strings only. Messages cannot
forge control tokens (see `control_tokens.py`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenora_engine.protocol.errors import InvalidRequestError
from tenora_engine.protocol.messages import ChatMessage

KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class TextFilter(Protocol):
    """Applied to every text of a message before the template sees it."""

    def __call__(self, text: str, /) -> str:
        """The text to render in its place."""
        ...


class ChatTemplate:
    """One compiled template. Rendering is CPU work: call it off the event loop."""

    def __init__(self, source: str, named_tokens: Mapping[str, str], *, max_chars: int) -> None:
        """Compile `source`; `named_tokens` are `bos_token` and its like.

        Raises:
            jinja2.TemplateSyntaxError: the template does not parse.
        """
        self.version = hashlib.sha256(source.encode()).hexdigest()[:16]
        self._template = _environment().from_string(source)
        self._named_tokens = dict(named_tokens)
        self._max_chars = max_chars
        self._knows_developer = "developer" in source

    def render(self, messages: Sequence[ChatMessage], filter_text: TextFilter = str) -> str:
        """The prompt's text, ending where the assistant is to begin.

        The role `developer` is rendered as `system` where the template does not know it.

        Raises:
            InvalidRequestError: the template refuses the messages (with its own sentence), a
                role is unknown, or the text is beyond `max_chars`.
        """
        pieces: list[str] = []
        num_chars = 0
        turns = [self._turn(index, message, filter_text) for index, message in enumerate(messages)]
        try:
            for piece in self._template.generate(
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._named_tokens,
            ):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > self._max_chars:
                    raise InvalidRequestError(
                        f"The rendered messages exceed {self._max_chars} characters.",
                        param="messages",
                    )
        except _TemplateRefusal as refusal:
            raise InvalidRequestError(str(refusal), param="messages") from None
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequestError(
                "The model's chat template cannot render these messages: check the order of "
                "roles and that every message has content.",
                param="messages",
            ) from error
        return "".join(pieces)

    def _turn(self, index: int, message: ChatMessage, filter_text: TextFilter) -> dict[str, str]:
        if message.role not in KNOWN_ROLES:
            raise InvalidRequestError(
                f"The role of message {index} is unknown; use one of "
                f"{', '.join(sorted(KNOWN_ROLES))}.",
                param="messages",
            )
        is_renamed = message.role == "developer" and not self._knows_developer
        turn = {
            "role": "system" if is_renamed else message.role,
            "content": filter_text(message.content),
        }
        if message.name is not None:
            turn["name"] = filter_text(message.name)
        return turn


def load_template_source(folder: Path, configured: object) -> str | None:
    """The template of a model folder: `chat_template.jinja`, else what its config says."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if isinstance(configured, list):
        named = {entry["name"]: entry["template"] for entry in configured}
        configured = named.get("default")
    return configured if isinstance(configured, str) else None


class _TemplateRefusal(jinja2.TemplateError):
    """The template called `raise_exception`: its sentence is meant for the caller."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it only renders."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        autoescape=False,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> None:
    raise _TemplateRefusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - templates expect local time


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
