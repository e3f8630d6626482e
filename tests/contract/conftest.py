"""The engines that must keep the contract: fake, in-process front, front over the wire, real.

The first three run a scripted core. The real engine is `python -m tenora_engine` with a tiny
random model; it is started once, and every test gets a connection of its own.

Another engine joins by one more entry in `ENGINES`; where its output cannot be scripted, tests
that ask for `scripted` are skipped for it.
"""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from tenora_engine.front.server import FrontServer
from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.fake import FakeEngine
from tenora_engine.protocol.remote import RemoteEngine
from tests.support.adapter_builder import mk
from tests.support.front import front_config, running_front, short_folder, until_serving
from tests.support.scripted_core import ScriptedCore
from tests.support.tiny_model import make_tiny_model
from tests.support.tiny_tokenizer import (
    END_OF_TEXT,
    IM_END,
    MODEL_VOCAB_SIZE,
    byte_ids,
    write_byte_level_folder,
)


@dataclass
class Harness:
    """An engine, and what a test may decide about it."""

    engine: EngineClient
    script: Callable[[str], None] | None = None
    """Makes every answer this text, one token per ASCII character, then the end token."""
    slow_down: Callable[[float], None] = lambda seconds: None
    """Seconds per token."""
    lose_after: Callable[[int], None] | None = None
    """The engine loses requests after that many tokens."""


@asynccontextmanager
async def fake() -> AsyncIterator[Harness]:
    engine = FakeEngine()

    def script(text: str) -> None:
        engine.script = list(text)

    def slow_down(seconds: float) -> None:
        engine.token_interval_s = seconds

    def lose_after(count: int) -> None:
        engine.fail_after_tokens = count

    yield Harness(engine, script, slow_down, lose_after)


@asynccontextmanager
async def front() -> AsyncIterator[Harness]:
    folder = short_folder()
    core = ScriptedCore(folder)
    try:
        async with running_front(front_config(folder), core) as engine:
            yield _scripted(engine, core)
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def remote() -> AsyncIterator[Harness]:
    folder = short_folder()
    core, config = ScriptedCore(folder), front_config(folder)
    try:
        async with running_front(config, core) as engine:
            server = FrontServer(engine, config.listen_url)
            await server.start()
            client = RemoteEngine(config.listen_url, "contract")
            await until_serving(client)
            yield _scripted(client, core)
            await client.close()
            await server.close()
    finally:
        shutil.rmtree(folder)


def _scripted(engine: EngineClient, core: ScriptedCore) -> Harness:
    def script(text: str) -> None:
        core.loop.script = lambda _: byte_ids(text)

    def slow_down(seconds: float) -> None:
        core.loop.step_interval_s = seconds

    def lose_after(count: int) -> None:
        core.loop.fail_after_tokens = count

    return Harness(engine, script, slow_down, lose_after)


@asynccontextmanager
async def real(url: str) -> AsyncIterator[Harness]:
    client = RemoteEngine(url)
    await until_serving(client, timeout_s=120)
    yield Harness(client)
    await client.close()
    cleaner = RemoteEngine(url)
    await until_serving(cleaner)
    async with asyncio.timeout(10):
        while (await cleaner.health()).num_running:  # noqa: ASYNC110 - it is told by nobody
            await asyncio.sleep(0.02)
    records = (await cleaner.pull_usage(limit=10_000)).records
    await cleaner.acknowledge_usage(up_to_seq=max((r.seq for r in records), default=0))
    await cleaner.close()


@pytest.fixture(scope="session")
def real_engine_url() -> Iterator[str]:
    folder = short_folder()
    write_byte_level_folder(folder / "model")
    make_tiny_model(
        folder / "model", vocab_size=MODEL_VOCAB_SIZE, bos_token_id=END_OF_TEXT, eos_token_id=IM_END
    )
    (folder / "objects" / "incoming").mkdir(parents=True)
    mk().write(folder / "objects" / "incoming" / "1")
    url = f"ipc://{folder / 'engine.sock'}"
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "tenora_engine",
            "--model-dir", folder / "model", "--base-model", "tiny", "--listen-url", url,
            "--run-dir", folder / "run", "--state-dir", folder / "state",
            "--object-store-url", f"file://{folder / 'objects'}",
            "--kv-cache-bytes", str(16 << 20), "--num-threads", "1",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield url
    process.terminate()
    process.wait(20)
    shutil.rmtree(folder)


ENGINES: Sequence[Callable[[], AbstractAsyncContextManager[Harness]]] = (fake, front, remote)


@pytest.fixture(
    params=[*ENGINES, pytest.param(None, id="real", marks=pytest.mark.xdist_group("real-engine"))]
)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param is None:
        async with real(request.getfixturevalue("real_engine_url")) as made:
            yield made
    else:
        async with request.param() as made:
            yield made


@pytest.fixture
def engine(harness: Harness) -> EngineClient:
    return harness.engine


@pytest.fixture
def script(harness: Harness) -> Callable[[str], None]:
    if harness.script is None:
        pytest.skip("the output of this engine cannot be scripted")
    return harness.script


@pytest.fixture
def lose_after(harness: Harness) -> Callable[[int], None]:
    if harness.lose_after is None:
        pytest.skip("this engine loses no request on demand")
    return harness.lose_after
