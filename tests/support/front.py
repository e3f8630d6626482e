"""A whole front in the test's event loop: tiny tokenizer, scripted core, real journal."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tenora_engine.config import EngineConfig
from tenora_engine.front.core_process import Core
from tenora_engine.front.service import EngineFront
from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.messages import (
    AdapterRef,
    AdapterReport,
    Delta,
    Finished,
    GenerateRequest,
    InspectRequest,
    SamplingParams,
    UsageRecord,
)
from tests.support.tiny_tokenizer import byte_ids, write_byte_level_folder

DIGEST = "ab" * 32


class AcceptingInspector:
    """Accepts every upload."""

    async def inspect(self, request: InspectRequest) -> AdapterReport:
        return AdapterReport(ref=AdapterRef(digest=DIGEST), num_modules=1)


def short_folder() -> Path:
    """A new folder whose socket paths stay within the limit of Unix sockets."""
    return Path(tempfile.mkdtemp(prefix="tnr-", dir="/tmp"))


def front_config(folder: Path, **changes: Any) -> EngineConfig:
    """Settings of a front whose files all live below `folder`."""
    for name in ("run", "state"):
        (folder / name).mkdir(exist_ok=True)
    if not (folder / "model").exists():
        write_byte_level_folder(folder / "model")
        (folder / "model" / "model.safetensors").write_bytes(b"weights")
    settings: dict[str, Any] = {
        "model_dir": folder / "model",
        "base_model": "tiny",
        "run_dir": folder / "run",
        "state_dir": folder / "state",
        "object_store_url": f"file://{folder / 'objects'}",
        "listen_url": f"ipc://{folder / 'run' / 'front.sock'}",
    }
    return EngineConfig(**settings | changes)


@asynccontextmanager
async def running_front(
    config: EngineConfig, core: Core, **options: Any
) -> AsyncIterator[EngineFront]:
    """A front that serves; closed at the end."""
    front = EngineFront(config, core, **{"inspector": AcceptingInspector(), **options})
    try:
        await front.start()
        await until_serving(front)
        yield front
    finally:
        await front.close()


async def until_serving(engine: EngineClient, *, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not (await engine.health()).serving:  # noqa: ASYNC110 - it is told by nobody
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


def generate_request(request_id: str, prompt: str = "prompt", **changes: Any) -> GenerateRequest:
    """A request for the tiny tokenizer; greedy, 100 tokens at most."""
    settings: dict[str, Any] = {
        "request_id": request_id,
        "token_ids": byte_ids(prompt),
        "template_version": "text",
        "max_tokens": 100,
        "sampling": SamplingParams(temperature=0.0),
        "attribution": b"who:" + request_id.encode(),
    }
    return GenerateRequest(**settings | changes)


async def collect(engine: EngineClient, request: GenerateRequest) -> tuple[str, Finished]:
    """Run to the end: the text of all deltas, and the end."""
    texts: list[str] = []
    ends: list[Finished] = []
    async for event in engine.generate(request):
        assert not ends, "an event after Finished"
        if isinstance(event, Delta):
            texts.append(event.text)
        else:
            ends.append(event)
    assert len(ends) == 1
    return "".join(texts), ends[0]


async def records_of(engine: EngineClient) -> dict[str, UsageRecord]:
    """All unacknowledged records, by request."""
    batch = await engine.pull_usage(limit=10_000)
    records = {record.request_id: record for record in batch.records}
    assert len(records) == len(batch.records), "two records of one request"
    return records


async def until_recorded(engine: EngineClient, request_id: str) -> UsageRecord:
    async with asyncio.timeout(5):
        while True:
            records = await records_of(engine)
            if request_id in records:
                return records[request_id]
            await asyncio.sleep(0.01)
