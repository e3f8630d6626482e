"""Tenora's engine alone: the same front and core, without API, keys, quotas and billing.

What it is faster than `tenora` by is what those cost. It is driven by the protocol's own client.
"""

import shutil
import sys
import time
from typing import Any
from uuid import uuid4

from load import RequestFailedError, Sample

from peers.cells import ADAPTERS
from peers.server import Server, ServerError
from peers.systems.base import ALL_TRAFFIC, START_TIMEOUT_S, Choice, Site, adapter_index
from tenora_engine.protocol.messages import (
    AdapterRef,
    Delta,
    Finished,
    GenerateRequest,
    InspectRequest,
    PrepareRequest,
    SamplingParams,
)
from tenora_engine.protocol.remote import RemoteEngine


class TenoraEngine:
    """Started and stopped at each visit, as `tenora` is."""

    name = "tenora-engine"
    traffic = ALL_TRAFFIC
    choices = ()
    streams = True

    def __init__(self, site: Site) -> None:
        self.site = site
        self.choice: Choice = {}
        self._folder = site.work / "tenora-engine"
        self._server: Server | None = None
        self._refs: list[AdapterRef] = []
        self._client: RemoteEngine | None = None

    def install(self) -> None:
        """Lay the adapters where the engine looks for uploads."""
        for name, folder in self.site.adapters.items():
            target = self._folder / "objects" / "incoming" / name
            shutil.copytree(folder, target, dirs_exist_ok=True)

    async def enter(self) -> bool:
        """Start; let it inspect the adapters once."""
        folder, url = self._folder, f"ipc://{self._folder / 'engine.sock'}"
        argv = (
            sys.executable, "-P", "-m", "tenora_engine",
            "--model-dir", str(self.site.model_dir), "--base-model", self.site.model_dir.name,
            "--listen-url", url, "--run-dir", str(folder), "--state-dir", str(folder),
            "--object-store-url", (folder / "objects").as_uri(),
        )  # fmt: skip
        self._server = Server(argv, {}, self.site.log(self.name))
        client = self._client = RemoteEngine(url, "bench")

        async def is_serving() -> bool:
            return (await client.health()).serving

        await self._server.wait_until(is_serving, START_TIMEOUT_S)
        if not self._refs:
            self._refs = [await _inspect(client, name) for name in ADAPTERS]
        return True

    async def leave(self) -> None:
        """Stop it."""
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def close(self) -> None:
        """See `leave`."""
        await self.leave()

    async def send(self, body: dict[str, Any]) -> Sample:
        """`prepare` and `generate`, as the API calls them."""
        started = time.perf_counter()
        client, index = self._client, adapter_index(body)
        assert client is not None
        prompt = await client.prepare(PrepareRequest(token_ids=tuple(body["prompt"])))
        request = GenerateRequest(
            request_id=uuid4().hex,
            token_ids=prompt.token_ids,
            template_version=prompt.template_version,
            max_tokens=body["max_tokens"],
            sampling=SamplingParams(temperature=0.0),
            adapter=None if index is None else self._refs[index],
        )
        first = last = 0.0
        async for event in client.generate(request):
            now = time.perf_counter()
            first = first or now
            if isinstance(event, Delta):
                last = now
            elif isinstance(event, Finished):
                usage = event.usage
                return Sample(
                    started, first, last or now, usage.completion_tokens, usage.cached_prompt_tokens
                )
        raise RequestFailedError("the engine's answer ended without Finished")

    async def facts(self) -> dict[str, Any]:
        """As the engine describes itself."""
        assert self._client is not None
        info = await self._client.describe()
        return {"dtype": info.weight_dtype, "settings": "defaults of `tenora engine`"}


async def _inspect(client: RemoteEngine, name: str) -> AdapterRef:
    report = await client.inspect_adapter(InspectRequest(prefix=f"incoming/{name}"))
    if report.ref is None:
        raise ServerError(f"{name} was refused: {report.problems}")
    return report.ref
