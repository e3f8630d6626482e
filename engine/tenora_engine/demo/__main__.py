"""Command line of the demo base model: ``python -m tenora_engine.demo TARGET``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tenora_engine.demo.base_model import DemoModelError, convert_demo_model


def main() -> int:
    """Converts into the folder named on the command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tenora_engine.demo", description=__doc__)
    parser.add_argument("target", type=Path, help="folder to create")
    # Read when tqdm is first imported: the libraries' bars would overwrite our own lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        folder = convert_demo_model(parser.parse_args().target, progress=_print_progress)
    except DemoModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _print_progress(stage: str, fraction: float) -> None:
    sys.stderr.write(f"{fraction:4.0%} {stage}\n")


if __name__ == "__main__":
    sys.exit(main())
