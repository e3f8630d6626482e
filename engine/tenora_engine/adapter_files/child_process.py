"""Runs one inspection in a child process and survives whatever becomes of it."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec
import structlog

import tenora_engine
from tenora_engine.adapter_files.child import ChildLimits, ChildTask
from tenora_engine.adapter_files.examine import InspectionJob
from tenora_engine.protocol.messages import AdapterProblem, AdapterReport

MAX_REPORT_BYTES = 1 << 20
CHILD_MODULE = "tenora_engine.adapter_files.child"

logger = structlog.get_logger(__name__)


class InspectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one upload may cost. Files are read in pieces, so memory does not grow with them."""

    memory_bytes: int = 512 << 20
    """Address space, most of it numpy's own."""
    cpu_s: int = 60
    wall_s: float = 180.0


class _ChildFailedError(Exception):
    """The child gave no report; the message may be shown to the tenant."""


async def run_inspection(
    job: InspectionJob, limits: InspectionLimits, max_file_bytes: int
) -> AdapterReport:
    """The child's report, or one with the problem `inspection_failed`. Always ends within
    `limits.wall_s` seconds and leaves no process behind, also when cancelled."""
    task = ChildTask(
        job=job,
        limits=ChildLimits(
            memory_bytes=limits.memory_bytes, cpu_s=limits.cpu_s, file_bytes=max_file_bytes
        ),
    )
    try:
        async with asyncio.timeout(limits.wall_s):
            return await _converse(msgspec.json.encode(task))
    except TimeoutError:
        reason = f"it took longer than {limits.wall_s:g} s"
    except _ChildFailedError as error:
        reason = str(error)
    logger.warning("adapter_inspection_failed", reason=reason)
    return AdapterReport(
        ref=None,
        problems=(
            AdapterProblem(
                code="inspection_failed",
                message=f"The inspection gave no result: {reason}. Simplify the patterns in "
                "adapter_config.json and upload again; if it repeats, ask the operator.",
            ),
        ),
    )


async def _converse(task: bytes) -> AdapterReport:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # the working folder holds no code
        "-s",
        "-m",
        CHILD_MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(ConnectionError):  # a child that died says so by its status
            process.stdin.write(task)
            await process.stdin.drain()
        process.stdin.close()
        output = await _read_bounded(process.stdout)
        status = await process.wait()
    finally:
        await _end(process)
    if status != 0:
        raise _ChildFailedError(_describe(status))
    try:
        return msgspec.json.decode(output, type=AdapterReport)
    except msgspec.DecodeError as error:
        raise _ChildFailedError("its report could not be read") from error


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    output = bytearray()
    while block := await stream.read(1 << 16):
        output += block
        if len(output) > MAX_REPORT_BYTES:
            raise _ChildFailedError("its report is too long")
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the child if it still runs, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _environment() -> dict[str, str]:
    """Nothing of ours but where Python finds the package; one thread, so little address space."""
    return {
        "PATH": os.defpath,
        "PYTHONPATH": str(Path(tenora_engine.__file__).parent.parent),
        "LC_ALL": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def _describe(status: int) -> str:
    if status == -signal.SIGXCPU:
        return "it used up its processor time"
    if status < 0:
        return f"it was ended by signal {-status}, as happens when it needs too much memory"
    return "it stopped on an unexpected error or for want of memory"
