"""Children are restarted, stopped in order, and never outlive their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tenora_platform.up.errors import StartError
from tenora_platform.up.process import ProcessSpec
from tenora_platform.up.supervisor import Child, Supervisor

ORPHAN_MAKER = """
import asyncio, sys
from pathlib import Path
from tenora_platform.up.process import ProcessSpec
from tenora_platform.up.supervisor import Supervisor

async def main():
    supervisor = Supervisor(lock=None, note=print)
    log_path = Path(sys.argv[1])
    spec = ProcessSpec(name="sleeper", argv=("sleep", "600"), environ={}, log_path=log_path)
    child = supervisor.start(spec)
    while child.pid is None:
        await asyncio.sleep(0.01)
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def spec(tmp_path: Path, name: str, script: str, *, stop_timeout_s: float = 5) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        argv=("/bin/sh", "-c", script),
        environ={"PATH": os.environ["PATH"]},
        log_path=tmp_path / f"{name}.log",
        stop_timeout_s=stop_timeout_s,
    )


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what other processes do sends no event
            await asyncio.sleep(0.01)


async def running_pid(child: Child, *, other_than: int | None = None) -> int:
    await until(lambda: child.pid not in {None, other_than})
    assert child.pid is not None
    return child.pid


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
async def supervisor(notes: list[str]) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(lock=None, note=notes.append)
    yield supervisor
    await supervisor.stop_all()


async def test_starts_a_killed_child_again(
    supervisor: Supervisor, notes: list[str], tmp_path: Path
) -> None:
    child = supervisor.start(spec(tmp_path, "role", "exec sleep 600"))
    first = await running_pid(child)
    os.kill(first, signal.SIGKILL)
    await running_pid(child, other_than=first)
    assert len(notes) == 1
    assert "SIGKILL" in notes[0]
    assert "role.log" in notes[0]


async def test_child_that_never_comes_up_is_a_failure_with_its_log(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    child = supervisor.start(spec(tmp_path, "role", "echo no such model; exit 3"))

    async def never() -> bool:
        return False

    with pytest.raises(StartError, match=r"status 3.*3 times[\s\S]*no such model"):
        await supervisor.until_ready(child, never, timeout_s=30)


async def test_program_that_does_not_exist_is_a_failure(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    missing = ProcessSpec(
        name="role", argv=("/nonexistent",), environ={}, log_path=tmp_path / "role.log"
    )
    child = supervisor.start(missing)

    async def never() -> bool:
        return False

    with pytest.raises(StartError, match="/nonexistent"):
        await supervisor.until_ready(child, never, timeout_s=30)


async def test_stops_in_the_given_order_then_the_last_started_first(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    names = ("first", "second", "third")
    for name in names:
        trap = f"trap 'echo {name} >> {order}; exit' TERM; touch {tmp_path / name}"
        script = f"{trap}; while :; do sleep 0.01; done"
        supervisor.start(spec(tmp_path, name, script))
    await until(lambda: all((tmp_path / name).exists() for name in names))
    await supervisor.stop_all(("second",))
    assert order.read_text().split() == ["second", "third", "first"]


async def test_child_that_ignores_the_request_is_killed_with_its_children(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    marker = tmp_path / "pid"
    script = f"trap '' TERM; sleep 600 & echo $! > {marker}; while :; do sleep 1; done"
    child = supervisor.start(spec(tmp_path, "role", script, stop_timeout_s=0.2))
    pid = await running_pid(child)
    await until(lambda: marker.exists() and marker.read_text() != "")
    grandchild = int(marker.read_text())
    await supervisor.stop_all()
    assert not is_running(pid)
    assert not is_running(grandchild)


async def test_step_that_fails_shows_its_log(supervisor: Supervisor, tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(StartError, match=r"migrate failed \(status 1\)[\s\S]*boom"):
        await supervisor.run(spec(tmp_path, "migrate", "echo boom; exit 1"), on_line=lines.append)
    assert lines == ["boom"]


def test_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN_MAKER, str(tmp_path / "sleeper.log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    give_up_at = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert not is_running(pid)
