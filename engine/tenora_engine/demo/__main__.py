"""Command line of the demo base model: ``python -m tenora_engine.demo TARGET``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tenora_engine.demo.base_model import DemoModelError, convert_demo_model


def main() -> int:
    """Converts into the folder named on the command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tenora_engine.demo", description=__doc__)
    parser.add_argument("target", type=Path, help="folder to create")
    try:
        folder = convert_demo_model(parser.parse_args().target, progress=_print_progress)
    except DemoModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(folder)
    return 0


def _print_progress(stage: str, fraction: float) -> None:
    print(f"{fraction:4.0%} {stage}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
