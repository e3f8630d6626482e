"""The inspection process: `python -m tenora_engine.adapter_files.child < job.json > report.json`.

It takes its limits before it opens a file of the tenant's, reads two files, writes one, and says
what it found on standard output. It uses no network and starts no process.
"""

import resource
import sys
import traceback

import msgspec

from tenora_engine.adapter_files.examine import InspectionJob, examine


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one inspection may use, enforced by the kernel."""

    memory_bytes: int
    cpu_s: int
    file_bytes: int


class ChildTask(msgspec.Struct, frozen=True, kw_only=True):
    """Standard input of the process."""

    job: InspectionJob
    limits: ChildLimits


MAX_OPEN_FILES = 32


def apply_limits(limits: ChildLimits) -> None:
    """Lower this process's own limits; they cannot be raised again."""
    # NPROC does not bind root; it keeps any other user's inspection from starting a process.
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_AS, limits.memory_bytes),
    ):
        _lower(kind, value, value)
    # At the soft limit comes SIGXCPU, which tells the parent why; at the hard one SIGKILL.
    _lower(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1)


def _lower(kind: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def main() -> int:
    """Examine one upload. Returns 0 with a report on standard output, else 1."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=ChildTask)
    apply_limits(task.limits)
    try:
        report = examine(task.job)
    except Exception as error:  # noqa: BLE001 - whatever happened, say where and not with what
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"{type(error).__name__} at {place.name}:{place.lineno}", file=sys.stderr)  # noqa: T201
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
