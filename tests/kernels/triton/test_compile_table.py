"""Every kernel compiles for every GPU we promise, without spills, as recorded."""

import os
import subprocess
import sys

import pytest

from tenora_kernels.compile_table.table import ops_with_kernels


@pytest.mark.parametrize("op", ops_with_kernels())
def test_kernels_compile_without_spills_and_as_recorded(
    op: str, pytestconfig: pytest.Config
) -> None:
    """In a process of its own: here kernels are interpreted, and those cannot be compiled.

    Triton knows by their source what it compiled before, so that only the first run is long.
    """
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("triton")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    command = [sys.executable, "-m", "tenora_kernels.compile_table", op, "--cache", str(cache)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
