"""PEFT's rules for which module a pattern of the configuration means.

Twin of `check_target_module_exists` and `get_pattern_key` in PEFT 0.21 (`tuners_utils.py`,
`utils/other.py`); `tests/engine/adapter_files/test_peft_agreement.py` compares them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

ALL_LINEAR = "all-linear"
_FIRST_INDEX = re.compile(r".*?\.[^.]*\.(?P<idx>\d+)\.")

Value = TypeVar("Value")


class PatternTable(Generic[Value]):
    """`rank_pattern` or `alpha_pattern`: the first pattern that ends a module's path decides.

    Raises:
        re.error: a pattern is not a regular expression.
    """

    def __init__(self, entries: Iterable[tuple[str, Value]]) -> None:
        self._entries = [(re.compile(rf"(.*\.)?({key})$"), value) for key, value in entries]

    def lookup(self, path: str, default: Value) -> Value:
        """The value for the module at `path`, else `default`."""
        for pattern, value in self._entries:
            if pattern.match(path):
                return value
        return default


class NameMatcher:
    """`target_modules` or `exclude_modules`: a list of name endings, or one regular expression.

    Raises:
        re.error: the text is not a regular expression.
    """

    def __init__(self, names: str | list[str]) -> None:
        self._pattern = re.compile(names) if isinstance(names, str) else None
        self._names = frozenset() if isinstance(names, str) else frozenset(names)
        self._endings = tuple(f".{name}" for name in self._names)

    def names_in_full(self, path: str) -> bool:
        """Whether the list holds the whole path."""
        return path in self._names

    def matches(self, path: str) -> bool:
        """Whether the module at `path` is meant."""
        if self._pattern is not None:
            return self._pattern.fullmatch(path) is not None
        return path in self._names or path.endswith(self._endings)


class LayerFilter:
    """`layers_to_transform` with `layers_pattern`: the first layer index in a path decides.

    Raises:
        re.error: a pattern is not a regular expression.
    """

    def __init__(self, layers: list[int], patterns: list[str]) -> None:
        self._layers = frozenset(layers)
        self._patterns = [
            re.compile(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.") for pattern in patterns
        ] or [_FIRST_INDEX]

    def matches(self, path: str) -> bool:
        """Whether the module at `path` lies in one of the layers."""
        found = next(filter(None, (pattern.match(path) for pattern in self._patterns)), None)
        return found is not None and int(found["idx"]) in self._layers


@dataclass(frozen=True, slots=True)
class TargetSelection:
    """Which modules of the base the configuration adapts.

    `targets` is None for "all-linear": every projection of the base is a linear module.
    """

    targets: NameMatcher | None
    excluded: NameMatcher | None = None
    layers: LayerFilter | None = None

    def field_against(self, path: str) -> str | None:
        """The configuration field that leaves the module at `path` out; None if it is selected."""
        if self.excluded is not None and self.excluded.matches(path):
            return "exclude_modules"
        if self.targets is None or self.targets.names_in_full(path):
            return None  # PEFT asks for the layer only where a name's ending matched
        if not self.targets.matches(path):
            return "target_modules"
        if self.layers is not None and not self.layers.matches(path):
            return "layers_to_transform"
        return None
