"""Collects what inspection finds wrong, so that a tenant learns all of it at once.

Text that comes from an upload is quoted here before it enters a message: escaped where it does
not print (NUL, lone surrogates, control characters) and cut to a bounded length.
"""

from collections import Counter

from tenora_engine.protocol.messages import AdapterProblem

MAX_PER_CODE = 8
"""Findings of one code that are listed one by one; the rest are counted."""

MAX_QUOTED_CHARS = 160


def quoted(value: object, limit: int = MAX_QUOTED_CHARS) -> str:
    """`value` as one printable line of at most `limit` characters, for use in a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def printable(text: str, limit: int = 256) -> str:
    """`text` without quotes, escaped where it does not print, at most `limit` characters."""
    return repr(text)[1:-1][:limit]


def listed(names: list[str], limit: int = MAX_PER_CODE) -> str:
    """The first `limit` names, quoted, and how many more there are."""
    shown = ", ".join(quoted(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


class Findings:
    """Problems refuse an adapter, warnings stay visible beside an accepted one."""

    def __init__(self) -> None:
        self._problems: list[AdapterProblem] = []
        self._warnings: list[AdapterProblem] = []
        self._counts: Counter[str] = Counter()

    def problem(self, code: str, message: str, field: str | None = None) -> None:
        """Record a reason to refuse; `field` is a config field, tensor or module name."""
        self._counts[code] += 1
        if self._counts[code] <= MAX_PER_CODE:
            self._problems.append(_finding(code, message, field))

    def warning(self, code: str, message: str, field: str | None = None) -> None:
        """Record something that the tenant should know but that refuses nothing."""
        self._warnings.append(_finding(code, message, field))

    @property
    def has_problems(self) -> bool:
        """Whether the adapter is refused."""
        return bool(self._problems)

    def problems(self) -> tuple[AdapterProblem, ...]:
        """All problems in the order found, then one line for each code with unlisted ones."""
        unlisted = tuple(
            AdapterProblem(
                code=code, message=f"{count - MAX_PER_CODE} more of this kind are not listed."
            )
            for code, count in self._counts.items()
            if count > MAX_PER_CODE
        )
        return (*self._problems, *unlisted)

    def warnings(self) -> tuple[AdapterProblem, ...]:
        """All warnings in the order found."""
        return tuple(self._warnings)


def _finding(code: str, message: str, field: str | None) -> AdapterProblem:
    return AdapterProblem(
        code=code, message=message, field=None if field is None else printable(field)
    )
