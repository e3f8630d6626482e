"""Tenora as its users run it: `tenora up --demo`, with keys, quotas, billing and the ledger."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from load import Sample, stream_completion
from synthetic_adapters import upload_mixed_adapters

from peers.cells import BASE
from peers.server import Server, answers, free_port
from peers.systems.base import ALL_TRAFFIC, START_TIMEOUT_S, Choice, Site
from tenora_engine.protocol.remote import RemoteEngine
from tenora_platform.up.folder import open_data_folder


class Tenora:
    """Started and stopped at each visit: it watches its own processes, so freezing would harm."""

    name = "tenora"
    traffic = ALL_TRAFFIC
    choices = ()
    streams = True

    def __init__(self, site: Site) -> None:
        self.site = site
        self.choice: Choice = {}
        self._data = site.work / "tenora"
        self._server: Server | None = None
        self._demo: dict[str, Any] = {}

    def install(self) -> None:
        """It is installed already: this program runs in its environment."""

    async def enter(self) -> bool:
        """Start with the data of the last visit; upload the adapters if they are not there."""
        demo_file, port = self._data / "demo.json", free_port()
        argv = (
            sys.executable, "-P", "-m", "tenora_platform", "up", "--demo",
            "--model", str(self.site.model_dir), "--data", str(self._data), "--port", str(port),
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        self._server = Server(argv, {}, self.site.log(self.name))

        async def is_complete() -> bool:
            return _is_written(demo_file, url) and await answers(f"{url}/health")

        await self._server.wait_until(is_complete, START_TIMEOUT_S)
        self._demo = json.loads(demo_file.read_text())
        upload_mixed_adapters(url, self._key, self.site.model_dir)
        return True

    async def leave(self) -> None:
        """Stop it; nothing of it is left."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def close(self) -> None:
        """See `leave`."""
        await self.leave()

    @property
    def server(self) -> Server:
        """The running server."""
        assert self._server is not None
        return self._server

    async def send(self, body: dict[str, Any]) -> Sample:
        """Through the API, with the first demo tenant's key."""
        if body["model"] == BASE:
            body = body | {"model": self._demo["base_model"]}
        return await stream_completion(self._demo["base_url"], self._key, body)

    async def facts(self) -> dict[str, Any]:
        """The dtype is what the engine behind the API says."""
        run_dir = open_data_folder(self._data, os.environ).run
        client = RemoteEngine(f"ipc://{run_dir / 'engine.sock'}")
        try:
            info = await client.describe()
        finally:
            await client.close()
        return {"dtype": info.weight_dtype, "settings": "defaults of `tenora up`"}

    @property
    def _key(self) -> str:
        key: str = self._demo["tenants"][0]["api_key"]
        return key


def _is_written(demo_file: Path, url: str) -> bool:
    """Whether this start has written its `demo.json`, which is the last that it does."""
    return demo_file.is_file() and json.loads(demo_file.read_text())["base_url"] == url
