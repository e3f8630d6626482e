"""One child process: how it is started so that it never outlives `tenora up`.

Each child leads a process group of its own (a Ctrl-C in the terminal reaches only `tenora up`,
which stops the children in order), appends to its own log, holds the data folder's lock, and is
signalled by the kernel if `tenora up` itself is killed.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenora_platform.up.account import Account

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to run. `environ` is the child's whole environment."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    log_path: Path
    account: Account | None = None
    descriptors: tuple[int, ...] = ()
    """Open file descriptors that the child needs, under the same numbers."""
    stop_signal: signal.Signals = signal.SIGTERM
    """Asks for an orderly end."""
    orphan_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends when `tenora up` is gone and nobody is left to escalate."""
    stop_timeout_s: float = 15.0


async def spawn(spec: ProcessSpec, *, lock: int | None) -> Process:
    """Starts `spec` in the calling thread; output goes to its log.

    The kernel's orphan signal is tied to the thread that forks: call this from a thread that
    lives as long as `tenora up`. Raises `OSError` where the program cannot be executed.
    """
    with spec.log_path.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *spec.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_spawn_options(spec, lock),
        )


async def run_to_end(
    spec: ProcessSpec, *, lock: int | None, on_line: Callable[[str], None] | None = None
) -> int:
    """Runs `spec` until it ends and returns its exit status; negative means a signal.

    Every line of its output is passed to `on_line` and kept in its log. A cancelled call ends
    the process first.
    """
    process = await asyncio.create_subprocess_exec(
        *spec.argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        **_spawn_options(spec, lock),
    )
    try:
        with spec.log_path.open("ab") as log:
            async for line in _output(process):
                log.write(line)
                if on_line is not None:
                    on_line(line.decode(errors="replace").rstrip())
        return await process.wait()
    finally:
        await end(process, spec)


async def end(process: Process, spec: ProcessSpec) -> None:
    """Guarantees that the process and its group are gone: asks, waits, then kills."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(spec.stop_signal)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), spec.stop_timeout_s)
    kill_group(process.pid)
    await process.wait()


def kill_group(leader_pid: int) -> None:
    """Kills what is left of the group that `leader_pid` leads or led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, signal.SIGKILL)


async def _output(process: Process) -> Any:
    assert process.stdout is not None
    async for line in process.stdout:
        yield line


def _spawn_options(spec: ProcessSpec, lock: int | None) -> dict[str, Any]:
    parent = os.getpid()
    orphan_signal = int(spec.orphan_signal)

    def tie_to_parent() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, orphan_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent was gone before the kernel knew of the tie
            os._exit(1)

    options: dict[str, Any] = {
        "env": dict(spec.environ),
        "process_group": 0,
        "umask": 0o077,
        "preexec_fn": tie_to_parent,
        "pass_fds": (*spec.descriptors, *(() if lock is None else (lock,))),
    }
    if spec.account is not None:
        options |= {"user": spec.account.uid, "group": spec.account.gid, "extra_groups": ()}
        options["cwd"] = "/"  # the folder we stand in may be closed to the account
    return options
