"""The grammar of adapter names, and of the `model` strings that call them.

A name has 1 to 64 characters of `a-z 0-9 . _ -` and starts with a letter or a digit. It has no
second spelling: no upper case, no Unicode, no separators that paths or `model` strings use. The
base model's id and a few words are reserved. `name` calls the newest READY revision and `name@3`
the third.
"""

import re
from typing import Final, NamedTuple

from tenora_platform.errors import InvalidInput

RESERVED_WORDS: Final = frozenset(
    {
        "adapter",
        "aux",
        "base",
        "con",
        "default",
        "latest",
        "lora",
        "model",
        "nul",
        "null",
        "none",
        "prn",
    }
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_REVISION: Final = re.compile(r"[1-9][0-9]{0,8}")


class CalledAdapter(NamedTuple):
    """What a `model` string asks for; `revision` None is the newest READY one."""

    name: str
    revision: int | None


def check_name(name: str, base_model: str) -> str:
    """`name` itself. Raises InvalidInput if the grammar or a reservation forbids it."""
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            "An adapter's name has 1 to 64 characters of a-z, 0-9, '.', '_' and '-', and starts "
            "with a letter or a digit.",
            code="invalid_adapter_name",
            param="name",
        )
    if name in RESERVED_WORDS or name == base_model.lower():
        raise InvalidInput(
            "This name is reserved. Choose another one.", code="reserved_adapter_name", param="name"
        )
    return name


def parse_model(model: str) -> CalledAdapter | None:
    """The adapter that `model` calls, or None if no adapter can have such a name."""
    name, separator, revision = model.partition("@")
    if _NAME.fullmatch(name) is None:
        return None
    if not separator:
        return CalledAdapter(name, None)
    if _REVISION.fullmatch(revision) is None:
        return None
    return CalledAdapter(name, int(revision))
