"""Typed reading of single configuration values; a wrong one is named, never replaced."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from tenora_engine.adapter_files.findings import quoted


class FieldError(Exception):
    """One field is missing or wrong; the message is already phrased for the tenant."""

    def __init__(self, code: str, message: str, field: str) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


def read_rank(value: object, field: str) -> int:
    """A whole number of at least 1; 8.0 and true are not whole numbers."""
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse_number(value, field, "a whole number, such as 16")
    if value < 1:
        raise FieldError("invalid_rank", f"{field} is {quoted(value)}; a rank is 1 or more.", field)
    return value


def read_alpha(value: object, field: str) -> float:
    """Any finite number: zero and negative ones are served as they are."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        _refuse_number(value, field, "a number, such as 32")
    try:
        is_finite = math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        is_finite = False
    if not is_finite:
        raise FieldError(
            "non_finite", f"{field} is not a finite number; write the one trained with.", field
        )
    return value


def read_flag(fields: Mapping[str, Any], field: str) -> bool:
    """True or false; absent and null are false."""
    value = fields.get(field)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise FieldError(
        "invalid_field", f"{field} is {quoted(value)}; it must be true or false.", field
    )


def read_names(value: object, field: str) -> str | list[str]:
    """One regular expression, or a list of names."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    raise FieldError(
        "invalid_field", f"{field} is {quoted(value)}; it must be text or a list of names.", field
    )


def _refuse_number(value: object, field: str, expected: str) -> NoReturn:
    if value is None:
        raise FieldError(
            "missing_field",
            f"{field} is missing, and the scale depends on it; write {expected}.",
            field,
        )
    raise FieldError("invalid_field", f"{field} is {quoted(value)}; it must be {expected}.", field)
