"""`make gpu-check` runs here with small shapes, and would run where torch and triton are alone."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_check.records import Recorder, read_records

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("kernels", "engine", "engine/benchmarks")

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")

ABSENT = """
import sys

class Absent:
    roots = {roots!r}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.roots:
            raise ModuleNotFoundError(name + " is not installed here")

sys.meta_path.insert(0, Absent())
"""
# all that an installation of Tenora has and one of torch and triton has not
LIBRARIES = (
    "msgspec", "zmq", "numpy", "tokenizers", "safetensors", "obstore", "structlog", "litestar",
    "transformers", "peft", "httpx", "typer", "rich", "sqlalchemy", "redis", "pytest",
)  # fmt: skip


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(REPOSITORY / source) for source in SOURCES)
    # a worker that has interpreted kernels says so in its environment
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env=inherited | {"PYTHONPATH": path} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


@needs_triton
def test_imports_torch_and_triton_only() -> None:
    program = ABSENT.format(roots=set(LIBRARIES)) + (
        "import gpu_check.__main__, gpu_check.parts, gpu_check.table\n"
        "from gpu_check.machine import circumstances\n"
        "from tenora_kernels.dispatch import use_backend\n"
        "use_backend('triton')\n"
        "assert circumstances()['torch']\n"
    )
    result = run("-c", program)
    assert result.returncode == 0, result.stderr


@needs_triton
def test_every_part_runs_with_small_shapes(tmp_path: Path) -> None:
    result = run("-m", "gpu_check", "--small", OUT=str(tmp_path), OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    written = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {record["part"] for record in written["records"]} == {"correctness", "kernels", "engine"}
    assert [r for r in written["records"] if r["status"] == "failed"] == []
    names = {record["name"] for record in written["records"]}
    assert names >= {
        "decode step", "LoRA overhead", "prefill", "copy bandwidth", "paged decode attention",
    }  # fmt: skip
    assert written["circumstances"]["torch"]
    assert "checks: " in result.stdout


@needs_triton
def test_a_part_that_hangs_is_ended_and_fails_the_check(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['gpu_check', '--small', '--only', 'correctness']\n"
        "import gpu_check.__main__ as check\n"
        "check.BUDGETS_S['correctness'] = 0.1 - check.GRACE_S\n"
        "sys.exit(check.main())\n"
    )
    result = run("-c", program, OUT=str(tmp_path))
    assert result.returncode == 1, result.stdout
    assert "was ended after" in result.stdout
    assert json.loads((tmp_path / "gpu_check.json").read_text())["records"][0]["status"] == "failed"


def test_a_failure_is_recorded_and_goes_no_further(tmp_path: Path) -> None:
    seconds_left = 1.0
    recorder = Recorder("part", tmp_path / "part.jsonl", lambda: seconds_left)

    def broken() -> None:
        raise RuntimeError("no such kernel")

    recorder.attempt("first", "[1]", broken, is_check=True)
    recorder.error("second", "[2]", 0.5, 0.1)
    seconds_left = 0.0
    recorder.attempt("third", "", broken)
    records = read_records(tmp_path / "part.jsonl")
    assert [record.status for record in records] == ["failed", "failed", "skipped"]
    assert records[0].detail.endswith("RuntimeError: no such kernel")
