"""The supervisor with real child processes, and a whole front as a process of its own."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenora_engine.config import EngineConfig, encode_config
from tenora_engine.front.core_process import CoreProcess
from tenora_engine.protocol.errors import EngineUnavailableError
from tenora_engine.protocol.remote import RemoteEngine
from tests.support.front import (
    front_config,
    generate_request,
    records_of,
    running_front,
    until_recorded,
    until_serving,
)

SCRIPTED = (sys.executable, "-m", "tests.support.scripted_core")


async def test_killed_core_fails_requests_at_once_and_comes_back(folder: Path) -> None:
    config = front_config(folder)
    core = CoreProcess(config, SCRIPTED)
    async with running_front(config, core) as front:
        events = front.generate(generate_request("r", max_tokens=500))
        await anext(events)
        assert core.pid is not None
        os.kill(core.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineUnavailableError):
            [event async for event in events]
        assert time.monotonic() - killed < 3
        assert not (await front.health()).serving
        record = await until_recorded(front, "r")
        assert (record.outcome, record.error_code) == ("error", "engine_unavailable")
        await until_serving(front)


async def test_core_that_fails_to_start_says_why(folder: Path) -> None:
    script = (
        "import sys, zmq, msgspec\n"
        "from tenora_engine.core.messages import CoreFailed\n"
        "from tenora_engine.protocol.errors import ErrorPayload\n"
        "sys.stdin.buffer.read()\n"
        "s = zmq.Context.instance().socket(zmq.PAIR); s.connect(sys.argv[1])\n"
        "e = ErrorPayload(kind='EngineError', code='c', message='Mamba is not supported.')\n"
        "s.send(msgspec.msgpack.encode(CoreFailed(error=e))); s.close(linger=1000)\n"
        "zmq.Context.instance().term()\n"
    )
    config = front_config(folder)
    core = CoreProcess(config, (sys.executable, "-c", script))
    from tenora_engine.front.service import EngineFront

    front = EngineFront(config, core)
    await front.start()
    async with asyncio.timeout(10):
        while "Mamba" not in (await front.health()).reason:  # noqa: ASYNC110 - seen by asking only
            await asyncio.sleep(0.05)
    with pytest.raises(EngineUnavailableError, match="Mamba is not supported"):
        await front.describe()
    await front.close()


async def test_core_that_cannot_be_executed_is_a_reason_not_a_crash(folder: Path) -> None:
    config = front_config(folder)
    lost: list[str] = []
    core = CoreProcess(config, (str(folder / "missing"),))
    await core.start(lambda _: None, lost.append)
    async with asyncio.timeout(5):
        while not lost:  # noqa: ASYNC110 - set by a callback
            await asyncio.sleep(0.01)
    assert "cannot be started" in lost[0]
    await core.stop()


async def test_too_long_run_folder_is_named(folder: Path) -> None:
    run_dir = folder / ("x" * 100)
    run_dir.mkdir()
    lost: list[str] = []
    core = CoreProcess(front_config(folder, run_dir=run_dir), SCRIPTED)
    await core.start(lambda _: None, lost.append)
    async with asyncio.timeout(5):
        while not lost:  # noqa: ASYNC110 - set by a callback
            await asyncio.sleep(0.01)
    assert "shorter run folder" in lost[0]
    await core.stop()


_SERVE = (
    "import asyncio, sys\n"
    "from tenora_engine.config import decode_config\n"
    "from tenora_engine.front.composition import serve\n"
    "config = decode_config(sys.stdin.buffer.read())\n"
    "command = (sys.executable, '-m', 'tests.support.scripted_core')\n"
    "asyncio.run(serve(config, command))\n"
)


@asynccontextmanager
async def front_process(config: EngineConfig) -> AsyncIterator[asyncio.subprocess.Process]:
    """A front in a process of its own, killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SERVE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(encode_config(config))
    process.stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie that waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_terminated_front_tells_its_clients_and_keeps_the_records(folder: Path) -> None:
    config = front_config(folder)
    client = RemoteEngine(config.listen_url)
    async with front_process(config) as process:
        await until_serving(client)
        events = client.generate(generate_request("r", max_tokens=500))
        await anext(events)
        process.terminate()
        with pytest.raises(EngineUnavailableError) as caught:
            [event async for event in events]
        assert caught.value.code == "shutdown"
        assert await process.wait() == 0
    async with front_process(config):
        await until_serving(client)
        record = (await records_of(client))["r"]
        assert (record.outcome, record.error_code) == ("error", "shutdown")
    await client.close()


async def test_killed_front_leaves_an_estimated_record_and_no_core(folder: Path) -> None:
    config = front_config(folder)
    client = RemoteEngine(config.listen_url)
    async with front_process(config) as process:
        await until_serving(client)
        events = client.generate(generate_request("r", max_tokens=500))
        await anext(events)
        (core_pid,) = children_of(process.pid)
        process.kill()
        killed = time.monotonic()
        with pytest.raises(EngineUnavailableError):
            [event async for event in events]
        assert time.monotonic() - killed < 5
        assert not is_alive(core_pid)
    async with front_process(config):
        await until_serving(client)
        record = (await records_of(client))["r"]
        assert (record.outcome, record.error_code) == ("error", "replica_lost")
        assert record.estimated
    await client.close()
