"""Why an installation cannot start.

UpError
├── DataFolderError   the data folder is in use, or holds something else
└── StartError        a process ended, or was not ready in time; carries the end of its log
"""

from pathlib import Path

LOG_TAIL_LINES = 15


class UpError(Exception):
    """Base of everything `tenora up` gives up on; the message says what to do next."""


class DataFolderError(UpError):
    """The data folder cannot be used as it is."""


class StartError(UpError):
    """A process did not come up."""

    @classmethod
    def with_log(cls, sentence: str, log_path: Path) -> "StartError":
        """Appends the last lines of `log_path`, which usually hold the cause."""
        tail = _last_lines(log_path)
        ending = f"\nThe end of {log_path}:\n{tail}" if tail else f"\nSee {log_path}."
        return cls(sentence + ending)


def _last_lines(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])
