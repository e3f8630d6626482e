"""Composition root of the core process: `python -m tenora_engine.core CORE_URL < config.json`.

CORE_URL is the ZeroMQ address that the front has bound for this life of the core; the
`EngineConfig` comes as JSON on standard input. The process ends when its parent does.
"""

import ctypes
import os
import signal
import sys

from tenora_engine.config import decode_config

PR_SET_PDEATHSIG = 1

ENVIRONMENT = {
    # Threads that spin at a barrier starve the thread they wait for wherever cores are shared:
    # a decode step took 4.4 times as long on two busy cores. Read when torch loads OpenMP.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Weights and cache in pages of 2 MiB, where the kernel grants them: a step reads all of them,
    # and with pages of 4 KiB an eighth of a decode step was spent in finding where they are.
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""What torch reads when it is loaded; what the operator has set stays."""


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; exit now if it is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def main() -> int:
    """Run the core until the front asks for shutdown. Returns the exit status."""
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front's to act on
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    core_url = sys.argv[1]
    config = decode_config(sys.stdin.buffer.read())
    from tenora_engine.core.loop import run_core

    return run_core(config, core_url)


if __name__ == "__main__":
    sys.exit(main())
