"""A server in processes of its own: started once, frozen while others are measured, ended.

A frozen server (SIGSTOP) keeps its memory and uses no core, so that a peer that takes minutes to
start can be visited several times.
"""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import httpx
import psutil

STOP_TIMEOUT_S = 60.0


class ServerError(Exception):
    """A server did not start, or ended by itself."""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One process and its descendants."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - programs that this run chose
                argv, env={**os.environ, **environ}, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file,
                start_new_session=True,  # a hang-up of the terminal is not theirs to act on
            )  # fmt: skip

    async def wait_until(self, is_ready: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Return when `is_ready`.

        Raises:
            ServerError: the process ended first, or the time ran out.
        """
        give_up_at = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at:
            if self._process.poll() is not None:
                raise ServerError(f"ended with {self._process.returncode}: see {self._log}")
            if await is_ready():
                return
            await asyncio.sleep(0.2)
        raise ServerError(f"not ready within {timeout_s:g} s: see {self._log}")

    def freeze(self) -> None:
        """Stop all processes where they are."""
        for process in self.processes():
            process.suspend()

    def thaw(self) -> None:
        """Let all processes go on."""
        for process in self.processes():
            process.resume()

    def stop(self) -> None:
        """End all processes: by SIGINT, and by SIGKILL what is left after a minute."""
        tree = self.processes()
        for process in tree:
            _quietly(process.resume)
        if self._process.poll() is None:
            self._process.send_signal(2)
        _, left = psutil.wait_procs(tree, timeout=STOP_TIMEOUT_S)
        for process in left:
            _quietly(process.kill)
        self._process.wait()

    def processes(self) -> list[psutil.Process]:
        """The process and its descendants, as they are now."""
        if self._process.poll() is not None:
            return []
        top = psutil.Process(self._process.pid)
        return [top, *top.children(recursive=True)]


async def answers(url: str) -> bool:
    """Whether a GET of `url` gives 200 now."""
    try:
        async with httpx.AsyncClient(timeout=2) as client:
            return (await client.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except psutil.NoSuchProcess:
        return
