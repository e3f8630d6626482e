"""Where and with what the figures were measured."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).parents[3]


def circumstances() -> dict[str, Any]:
    """Hardware, versions and commit."""
    try:
        from triton import __version__ as triton_version
    except ImportError:
        triton_version = "absent"
    return {
        "gpu": _gpu() if torch.cuda.is_available() else None,
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton_version,
        "commit": _commit(),
    }


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def _commit() -> str:
    dirty = _answer("git", "status", "--porcelain", "--untracked-files=no")
    return _answer("git", "rev-parse", "--short", "HEAD") + ("-dirty" if dirty else "")


def _answer(*command: str) -> str:
    """What a command prints; empty where it is not installed or refuses."""
    try:
        result = subprocess.run(  # noqa: S603 - fixed commands
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()
