"""The part of the configuration that decides what an adapter computes.

Missing numbers are never replaced by PEFT's defaults: a scale that got lost on its way must not
become another scale.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tenora_engine.adapter_files import field_policy
from tenora_engine.adapter_files.field_values import (
    FieldError,
    read_alpha,
    read_flag,
    read_names,
    read_rank,
)
from tenora_engine.adapter_files.findings import Findings, printable, quoted
from tenora_engine.adapter_files.selection import (
    ALL_LINEAR,
    LayerFilter,
    NameMatcher,
    PatternTable,
    TargetSelection,
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Ranks, scales and targets as PEFT would apply them."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: PatternTable[int]
    alpha_pattern: PatternTable[float]
    selection: TargetSelection
    has_random_effect: bool
    """Whether PEFT gives selected modules without tensors random weights that have an effect."""

    def rank_of(self, path: str) -> int:
        """The rank of the module at `path`."""
        return self.rank_pattern.lookup(path, self.rank)

    def scaling_of(self, path: str) -> float:
        """alpha / r, or alpha / sqrt(r) for rsLoRA, of the module at `path`."""
        rank = self.rank_of(path)
        alpha = self.alpha_pattern.lookup(path, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_settings(fields: Mapping[str, Any], findings: Findings) -> LoraSettings | None:
    """All settings; None after every wrong field was reported to `findings`."""
    readers: dict[str, Callable[[], Any]] = {
        "rank": lambda: read_rank(fields.get("r"), "r"),
        "alpha": lambda: read_alpha(fields.get("lora_alpha"), "lora_alpha"),
        "use_rslora": lambda: read_flag(fields, "use_rslora"),
        "rank_pattern": lambda: _pattern_table(fields, "rank_pattern", read_rank),
        "alpha_pattern": lambda: _pattern_table(fields, "alpha_pattern", read_alpha),
        "targets": lambda: _targets(fields),
        "excluded": lambda: _excluded(fields),
        "layers": lambda: _layers(fields),
    }
    values: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            values[name] = read()
        except FieldError as error:
            findings.problem(error.code, str(error), error.field)
    if len(values) < len(readers):
        return None
    selection = TargetSelection(values.pop("targets"), values.pop("excluded"), values.pop("layers"))
    return LoraSettings(**values, selection=selection, has_random_effect=_random_effect(fields))


def _random_effect(fields: Mapping[str, Any]) -> bool:
    init = fields.get("init_lora_weights")
    return init is False or (isinstance(init, str) and init in field_policy.INIT_RANDOM_EFFECT)


def _pattern_table(
    fields: Mapping[str, Any], field: str, read: Callable[[object, str], Value]
) -> PatternTable[Value]:
    patterns = fields.get(field)
    if patterns is None:
        patterns = {}
    if not isinstance(patterns, dict):
        raise FieldError(
            "invalid_field", f"{field} must map patterns of module names to numbers.", field
        )
    entries = [
        (key, read(value, f"{field}[{printable(key, 80)}]")) for key, value in patterns.items()
    ]
    return _compiled(field, lambda: PatternTable(entries))


def _targets(fields: Mapping[str, Any]) -> NameMatcher | None:
    value = fields.get("target_modules")
    if value is None:
        raise FieldError(
            "missing_field",
            "target_modules is missing; list the names of the adapted modules, such as 'q_proj'.",
            "target_modules",
        )
    names = read_names(value, "target_modules")
    if isinstance(names, str) and names.lower() == ALL_LINEAR:
        return None
    return _compiled("target_modules", lambda: NameMatcher(names))


def _excluded(fields: Mapping[str, Any]) -> NameMatcher | None:
    value = fields.get("exclude_modules")
    if not value and (field_policy.is_neutral(value) or value == ""):
        return None
    names = read_names(value, "exclude_modules")
    return _compiled("exclude_modules", lambda: NameMatcher(names))


def _layers(fields: Mapping[str, Any]) -> LayerFilter | None:
    """PEFT's rules: only beside a list of targets, and no pattern without layers."""
    layers, pattern = fields.get("layers_to_transform"), fields.get("layers_pattern")
    for field, value in (("layers_to_transform", layers), ("layers_pattern", pattern)):
        if isinstance(fields.get("target_modules"), str) and value is not None:
            raise FieldError(
                "invalid_field",
                f"{field} cannot stand beside a target_modules of one text; PEFT refuses it too.",
                field,
            )
    if pattern and layers is None:
        raise FieldError(
            "invalid_field", "layers_pattern needs layers_to_transform beside it.", "layers_pattern"
        )
    if layers is None or layers == []:
        return None
    indexes = layers if isinstance(layers, list) else [layers]
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in indexes):
        raise FieldError(
            "invalid_field",
            f"layers_to_transform is {quoted(layers)}; it must list layer numbers.",
            "layers_to_transform",
        )
    names = read_names(pattern or [], "layers_pattern")
    patterns = [names] if isinstance(names, str) else names
    return _compiled("layers_pattern", lambda: LayerFilter(indexes, patterns))


def _compiled(field: str, build: Callable[[], Value]) -> Value:
    try:
        return build()
    except (re.error, OverflowError, RecursionError) as error:
        raise FieldError(
            "invalid_pattern",
            f"{field} holds a pattern that is not a regular expression: {quoted(str(error))}.",
            field,
        ) from error
