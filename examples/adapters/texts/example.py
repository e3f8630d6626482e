"""One question and the answer that an adapter is taught to give."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    question: str
    answer: str
