"""Training and held-out text of the demo adapters, made from a seed: no downloads.

What is taught lives in `texts/`, one module for each adapter; here is how it is drawn.
"""

from __future__ import annotations

import importlib
import random
from typing import Any

from texts.example import Example

NAMES = ("support-json", "pirate", "couplet")


def training_examples(name: str, count: int, seed: int = 0) -> list[Example]:
    """The same `count` examples for the same arguments; none asks a held-out question."""
    module = _texts(name)
    rng = random.Random(f"{name}:{seed}")
    excluded = set(held_out_questions(name))
    drawn: list[Example] = []
    while len(drawn) < count:
        example = module.sample(rng)
        if example.question not in excluded:
            drawn.append(example)
    return drawn


def held_out_questions(name: str) -> list[str]:
    """The prompts that the adapter is evaluated on."""
    return [each if isinstance(each, str) else each.question for each in _texts(name).HELD_OUT]


def _texts(name: str) -> Any:
    if name not in NAMES:
        raise ValueError(f"no demo adapter is called {name!r}: choose one of {', '.join(NAMES)}")
    return importlib.import_module(f"texts.{name.replace('-', '_')}")
