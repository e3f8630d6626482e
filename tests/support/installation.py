"""A whole installation as its user starts it: `tenora up --demo` in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import psutil

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0
REPOSITORY = Path(__file__).parents[2]

T = TypeVar("T")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(probe: Callable[[], T | None], *, timeout_s: float, what: str) -> T:
    """The first truthy value of `probe`, asked every 50 ms."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        value = probe()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {timeout_s:g} s")


class Installation:
    """Starts, stops and looks into one data folder."""

    def __init__(self, data: Path, *, model_cache: Path, environ: dict[str, str]) -> None:
        self.data = data
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._environ = {
            **os.environ,
            "TENORA_MODEL_CACHE": str(model_cache),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[openai.OpenAI] = []

    @property
    def database_url(self) -> str:
        """The embedded PostgreSQL, for looking at the books and for making tenants."""
        return f"postgresql+asyncpg://tenora@/tenora?host={self.data / 'run' / 'postgres'}"

    @property
    def demo(self) -> dict[str, Any]:
        """The contents of demo.json."""
        found: dict[str, Any] = json.loads((self.data / "demo.json").read_text())
        return found

    def start(self) -> float:
        """Start and wait until it is complete; returns the seconds that took."""
        started = time.monotonic()
        log = (self.data.parent / "up.log").open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "tenora_platform", "up", "--demo",
                "--data", str(self.data), "--port", str(self.port),
            ],
            cwd=REPOSITORY, env=self._environ, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        wait_until(self._is_complete, timeout_s=START_TIMEOUT_S, what="tenora up")
        return time.monotonic() - started

    def _is_complete(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self.data.parent / "up.log").read_text()[-4000:])
        try:
            is_serving = httpx.get(f"{self.base_url}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False
        return is_serving and all(t["adapters"] for t in self._demo_tenants())

    def _demo_tenants(self) -> list[dict[str, Any]]:
        try:
            tenants: list[dict[str, Any]] = self.demo["tenants"]
        except FileNotFoundError:
            return [{"adapters": []}]
        return tenants

    def processes(self) -> list[psutil.Process]:
        """`tenora up` and everything below it."""
        assert self._process is not None
        top = psutil.Process(self._process.pid)
        return [top, *top.children(recursive=True)]

    def core(self) -> psutil.Process | None:
        """The engine's core process, if it lives now."""
        for process in self.processes():
            try:
                if "tenora_engine.core" in process.cmdline():
                    return process
            except psutil.Error:
                continue
        return None

    def stop(self) -> list[psutil.Process]:
        """Ctrl-C, then the processes that were not gone when `tenora up` had ended."""
        if self._process is None or self._process.poll() is not None:
            return []
        before = self.processes()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(STOP_TIMEOUT_S)
        return [process for process in before if process.is_running()]

    def tenant(self, name: str) -> dict[str, Any]:
        """One tenant of demo.json by name."""
        found: dict[str, Any] = next(t for t in self.demo["tenants"] if t["name"] == name)
        return found

    def client(self, name: str, **options: Any) -> openai.OpenAI:
        """The official SDK with the tenant's key."""
        return self.sdk(self.tenant(name)["api_key"], **options)

    def sdk(self, api_key: str, **options: Any) -> openai.OpenAI:
        """The official SDK with a key; closed by `close_clients`."""
        client = openai.OpenAI(base_url=f"{self.base_url}/v1", api_key=api_key, **options)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Close the connections of every client given out so far."""
        while self._clients:
            self._clients.pop().close()

    def get(self, path: str, api_key: str) -> dict[str, Any]:
        """GET as JSON; any other status than 200 fails the test."""
        answer = httpx.get(
            f"{self.base_url}{path}", headers={"Authorization": f"Bearer {api_key}"}, timeout=10
        )
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def usage_records(self, name: str) -> list[dict[str, Any]]:
        """All usage records of a tenant, the latest first."""
        key = self.tenant(name)["api_key"]
        records: list[dict[str, Any]] = []
        path = "/v1/usage/records?limit=100"
        page = self.get(path, key)
        records += page["data"]
        while page["has_more"]:
            page = self.get(f"{path}&after={page['next']}", key)
            records += page["data"]
        return records
