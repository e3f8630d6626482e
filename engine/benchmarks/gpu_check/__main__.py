"""Composition root of `make gpu-check`: runs the parts, prints the table, sets the exit status.

    PYTHONPATH=kernels:engine:engine/benchmarks python3 -m gpu_check [--small] [--out FOLDER]

Each part is a process of its own with a time budget: a kernel that damages the device's context
or hangs takes its own part with it and no other. The folder is that of the environment's OUT.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

# longest times in seconds; their sum is what a whole run may take
BUDGETS_S = {"correctness": 120, "kernels": 100, "engine": 210}
# a part ends by itself before its process is ended
GRACE_S = 10


def main() -> int:
    """Run what the arguments ask for. Returns 1 when something computed is wrong."""
    arguments = _arguments()
    if arguments.part:
        return _run_part(arguments.part, arguments.small, Path(arguments.out))
    out = Path(arguments.out or os.environ.get("OUT") or tempfile.mkdtemp(prefix="gpu-check-"))
    out.mkdir(parents=True, exist_ok=True)
    from gpu_check.machine import circumstances

    small = arguments.small or circumstances()["gpu"] is None
    started = time.monotonic()
    endings = {part: _start_part(part, small, out) for part in arguments.only or BUDGETS_S}
    return _report(out, endings, small=small, wall_s=time.monotonic() - started)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny shapes in the interpreter")
    parser.add_argument("--out", default="", help="folder of the results (default: $OUT)")
    parser.add_argument("--only", nargs="+", choices=BUDGETS_S, help="some of the parts")
    parser.add_argument("--part", choices=BUDGETS_S, help=argparse.SUPPRESS)
    return parser.parse_args()


def _start_part(part: str, small: bool, out: Path) -> str:
    """Run one part as a child process; how it ended, empty when it ended well."""
    print(f"gpu-check: {part} ...", flush=True)
    (out / f"{part}.jsonl").unlink(missing_ok=True)
    command = [sys.executable, "-m", "gpu_check", "--part", part, "--out", str(out)]
    environ = dict(os.environ)
    if small:
        command.append("--small")
        environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        status = subprocess.run(  # noqa: S603 - this program again
            command, env=environ, check=False, timeout=BUDGETS_S[part] + GRACE_S
        ).returncode
    except subprocess.TimeoutExpired:
        return f"was ended after {BUDGETS_S[part] + GRACE_S} s"
    return "" if status == 0 else f"ended with status {status}"


def _run_part(part: str, small: bool, out: Path) -> int:
    """This process is one part."""
    import torch

    if small:
        from tenora_kernels.interpreter import interpret_kernels

        interpret_kernels()
    from gpu_check.parts import PARTS
    from gpu_check.records import Recorder
    from gpu_check.shapes import REAL, SMALL
    from tenora_kernels.dispatch import use_backend

    use_backend("triton")
    deadline = time.monotonic() + BUDGETS_S[part]
    recorder = Recorder(part, out / f"{part}.jsonl", lambda: deadline - time.monotonic())
    device = torch.device("cpu" if small else "cuda")
    if small:
        torch.set_num_threads(1)
    with torch.inference_mode():
        PARTS[part](recorder, SMALL if small else REAL, device)
    return 0


def _report(out: Path, endings: dict[str, str], *, small: bool, wall_s: float) -> int:
    from gpu_check.machine import circumstances
    from gpu_check.records import Record, read_records
    from gpu_check.table import print_table

    records = []
    for part, ending in endings.items():
        found = read_records(out / f"{part}.jsonl")
        if ending or not found:
            detail = ending or "recorded nothing"
            found.append(
                Record(part, "the part itself", status="failed", is_check=True, detail=detail)
            )
        records += found
    where = circumstances()
    result = {
        "circumstances": where,
        "small": small,
        "wall_s": round(wall_s, 1),
        "records": [asdict(record) for record in records],
    }
    (out / "gpu_check.json").write_text(json.dumps(result, indent=1) + "\n")
    print_table(where, records, wall_s=wall_s, path=out / "gpu_check.json")
    return int(any(record.is_check and record.status == "failed" for record in records))


if __name__ == "__main__":
    sys.exit(main())
