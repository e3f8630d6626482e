"""The worker as a process: it waits for its servers, and ends cleanly on SIGTERM."""

import asyncio
import os
import signal
import sys
from pathlib import Path

CODE = """
import asyncio
from tenora_platform.settings import Settings
from tenora_platform.worker import run_worker
asyncio.run(run_worker(Settings.from_environ()))
"""


async def test_waits_for_the_engine_and_stops_on_sigterm(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    environ = {
        **os.environ,
        "TENORA_DATABASE_URL": database_url,
        "TENORA_REDIS_URL": redis_url,
        "TENORA_ENGINE_URL": f"ipc://{tmp_path}/absent.sock",
        "TENORA_OBJECT_STORE_URL": f"file://{tmp_path}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CODE, env=environ, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    seen = b""
    async with asyncio.timeout(60):
        while b"worker.waiting" not in seen:
            line = await process.stderr.readline()
            assert line, seen.decode()
            seen += line
        process.send_signal(signal.SIGTERM)
        rest = await process.stderr.read()
        assert await process.wait() == 0, (seen + rest).decode()
