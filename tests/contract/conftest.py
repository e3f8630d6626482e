"""The engines that must keep the contract: fake, in-process front, and front over the wire.

Another engine joins by one more entry in `ENGINES`; where its output cannot be scripted, tests
that ask for `scripted` are skipped for it.
"""

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from tenora_engine.front.server import FrontServer
from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.fake import FakeEngine
from tenora_engine.protocol.remote import RemoteEngine
from tests.support.front import front_config, running_front, short_folder, until_serving
from tests.support.scripted_core import ScriptedCore
from tests.support.tiny_tokenizer import byte_ids


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


ENGINES: Sequence[Callable[[], AbstractAsyncContextManager[Harness]]] = (fake, front, remote)


@pytest.fixture(params=ENGINES, ids=lambda make: str(make.__name__))
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
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
