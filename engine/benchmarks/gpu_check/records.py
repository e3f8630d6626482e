"""What a part found: one record per check or figure, written the moment it is known."""

import json
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the table. A check is right or wrong; a figure may have a target."""

    part: str
    name: str
    shape: str = ""
    status: Status = "ok"
    is_check: bool = False
    is_detail: bool = False  # in the JSON, not in the table
    value: float | None = None
    unit: str = ""
    share: float | None = None
    share_of: str = ""
    target: str = ""
    detail: str = ""


class Recorder:
    """Appends records to a file, so that a part which dies has still told what it knew."""

    def __init__(self, part: str, path: Path, seconds_left: Callable[[], float]) -> None:
        self.part = part
        self._path = path
        self._seconds_left = seconds_left

    def figure(self, name: str, shape: str, value: float, unit: str, **more: Any) -> None:
        """Record a measured number."""
        self._write(Record(self.part, name, shape, value=value, unit=unit, **more))

    def error(self, name: str, shape: str, error: float, tolerance: float) -> None:
        """Record a check: the largest scaled difference from the reference, and its bound."""
        status: Status = "ok" if error <= tolerance else "failed"
        target = f"<= {tolerance:g}"
        self._write(
            Record(
                self.part, name, shape, status, is_check=True, value=error, unit="error",
                target=target,
            )
        )  # fmt: skip

    def claim(self, name: str, shape: str, *, holds: bool, detail: str = "") -> None:
        """Record a check that is true or false."""
        status: Status = "ok" if holds else "failed"
        self._write(Record(self.part, name, shape, status, is_check=True, detail=detail))

    def attempt(
        self, name: str, shape: str, work: Callable[[], None], *, is_check: bool = False
    ) -> None:
        """Run `work`, which records what it finds; its failure is recorded and goes no further."""
        if self._seconds_left() <= 0:
            self._write(Record(self.part, name, shape, "skipped", is_check, detail="out of time"))
            return
        try:
            work()
        except Exception:  # noqa: BLE001 - one failure must not hide the other results
            lines = traceback.format_exc().strip()
            self._write(Record(self.part, name, shape, "failed", is_check, detail=lines))

    def _write(self, record: Record) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def read_records(path: Path) -> list[Record]:
    """Every record of a part, also of one that was killed."""
    if not path.is_file():
        return []
    return [Record(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
