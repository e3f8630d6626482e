"""A peer's folder with a virtual environment of its own, installed once.

A stamp holds the recipe that the folder was made by; another recipe installs again.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

STAMP = ".recipe"

TORCH = "torch==2.13.0"
"""Pinned, because an open range may take a build of several gigabytes for other devices."""


class Environment:
    """`python` runs in it; `folder` may hold other things that installing makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"

    def ensure(self, recipe: Sequence[str], build: Callable[["Environment"], None]) -> None:
        """Make the folder by `build`, unless this recipe has made it before."""
        stamp, wanted = self.folder / STAMP, "\n".join(recipe) + "\n"
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        print(f"installing {self.folder.name} (once)", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        build(self)
        stamp.write_text(wanted)

    def create(self) -> None:
        """An empty virtual environment; what `build` starts with."""
        run(sys.executable, "-m", "venv", self.folder / "venv")

    def pip(self, *arguments: str | Path) -> None:
        """`pip` of this environment."""
        run(self.python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)

    def versions(self, *packages: str) -> dict[str, str]:
        """What is installed, by package."""
        code = "import sys, importlib.metadata as m\nfor n in sys.argv[1:]: print(m.version(n))"
        answer = subprocess.run(  # noqa: S603 - the interpreter that this run made
            [self.python, "-c", code, *packages], check=True, capture_output=True, text=True
        )
        return dict(zip(packages, answer.stdout.split(), strict=True))


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run to the end; raises `subprocess.CalledProcessError` where it fails."""
    subprocess.run(command, check=True, cwd=cwd)  # noqa: S603 - commands of this package
