"""The wire: sessions, silence, foreign requests, versions, and one message per step."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from tenora_engine.front.server import FrontServer
from tenora_engine.front.service import EngineFront
from tenora_engine.protocol import wire
from tenora_engine.protocol.errors import EngineUnavailableError
from tenora_engine.protocol.messages import PROTOCOL_VERSION, Delta, PrepareRequest
from tenora_engine.protocol.remote import RemoteEngine
from tests.support.front import (
    collect,
    front_config,
    generate_request,
    records_of,
    running_front,
    until_recorded,
)
from tests.support.scripted_core import ScriptedCore, ScriptedLoop
from tests.support.tiny_tokenizer import byte_ids


@asynccontextmanager
async def served(
    folder: Path, text: str = "hello", interval_s: float = 0.001
) -> AsyncIterator[tuple[EngineFront, ScriptedCore, str]]:
    core = ScriptedCore(
        folder, ScriptedLoop(script=lambda _: byte_ids(text), step_interval_s=interval_s)
    )
    config = front_config(folder)
    async with running_front(config, core) as front:
        server = FrontServer(front, config.listen_url)
        await server.start()
        yield front, core, config.listen_url
        await server.close()


class RawClient:
    """Speaks envelopes by hand."""

    def __init__(self, url: str, identity: bytes = b"raw-1") -> None:
        self.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.IDENTITY, identity)
        self.socket.connect(url)
        self.session = ""

    async def send(self, message: object) -> None:
        await self.socket.send(msgspec.msgpack.encode(message))

    async def receive(self) -> wire.ToClient:
        async with asyncio.timeout(5):
            return wire.to_client_decoder.decode(await self.socket.recv())

    async def greet(self, version: int = PROTOCOL_VERSION) -> wire.Pulse:
        await self.send(wire.Heartbeat(protocol_version=version))
        pulse = await self.receive()
        assert isinstance(pulse, wire.Pulse)
        self.session = pulse.session
        return pulse

    async def greet_again(self) -> wire.Pulse:
        """Greet, past whatever else arrives first."""
        await self.send(wire.Heartbeat(protocol_version=PROTOCOL_VERSION))
        while not isinstance(message := await self.receive(), wire.Pulse):
            pass
        return message

    async def start(self, request_id: str) -> None:
        request = generate_request(request_id)
        await self.send(wire.StartGeneration(session=self.session, request=request))


async def test_other_version_is_refused_clearly(folder: Path) -> None:
    async with served(folder) as (_, _, url):
        client = RawClient(url)
        pulse = await client.greet(PROTOCOL_VERSION + 1)
        assert pulse.error is not None
        assert pulse.error.code == "protocol_mismatch"
        assert str(PROTOCOL_VERSION + 1) in pulse.error.message
        await client.start("r")
        refused = await client.receive()
        assert isinstance(refused, wire.StreamEvents)
        assert refused.events[0].error is not None
        client.socket.close()


async def test_remote_engine_raises_the_refusal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(folder) as (_, _, url):
        monkeypatch.setattr("tenora_engine.protocol.connection.PROTOCOL_VERSION", 99)
        client = RemoteEngine(url)
        with pytest.raises(EngineUnavailableError) as caught:
            await client.describe()
        assert caught.value.code == "protocol_mismatch"
        await client.close()


async def test_all_sequences_of_a_step_share_one_message(folder: Path) -> None:
    async with served(folder, "x" * 40, 0.02) as (_, core, url):
        client = RawClient(url)
        await client.greet()
        core.loop.is_frozen = True
        for index in range(8):
            await client.start(f"r{index}")
        await asyncio.sleep(0.2)
        core.loop.is_frozen = False
        sizes = []
        for _ in range(12):
            message = await client.receive()
            if isinstance(message, wire.StreamEvents):
                sizes.append(len(message.events))
        assert sizes.count(8) >= 8
        client.socket.close()


async def test_silent_client_loses_its_requests_and_learns_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_INTERVAL_S", 0.05)
    async with served(folder, "x" * 90, 0.02) as (front, _, url):
        client = RawClient(url)
        first = await client.greet()
        await client.start("r")
        record = await until_recorded(front, "r")
        assert record.outcome == "aborted"
        assert (await client.greet_again()).session != first.session
        client.socket.close()


async def test_client_cannot_abort_the_request_of_another(folder: Path) -> None:
    async with served(folder, "hello", 0.02) as (front, core, url):
        mine, other = RawClient(url, b"mine-1"), RawClient(url, b"other-1")
        await mine.greet()
        await other.greet()
        await mine.start("r")
        await asyncio.sleep(0.02)
        await other.send(wire.AbortGeneration(session=other.session, request_id="r"))
        await other.send(wire.Goodbye())
        assert (await until_recorded(front, "r")).outcome == "stop"
        assert core.aborts() == []
        mine.socket.close()
        other.socket.close()


async def test_stale_session_is_refused(folder: Path) -> None:
    """What a client queued for an earlier front does not run in the next one."""
    async with served(folder) as (_, core, url):
        client = RawClient(url)
        await client.greet()
        client.session = "another life"
        await client.start("r")
        message = await client.receive()
        assert isinstance(message, wire.StreamEvents)
        assert message.events[0].error is not None
        await client.send(wire.Call(session="another life", call_id=1, method="describe"))
        answer = await client.receive()
        assert isinstance(answer, wire.Answer)
        assert answer.error is not None
        assert core.adds() == []
        client.socket.close()


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"junk", msgspec.msgpack.encode({"type": "no"})])
async def test_junk_disturbs_nobody(folder: Path, junk: bytes) -> None:
    async with served(folder) as (_, _, url):
        client = RawClient(url, b"junk-1")
        await client.socket.send(junk)
        await client.greet()
        await client.send(wire.Call(session=client.session, call_id=1, method="shutdown"))
        answer = await client.receive()
        assert isinstance(answer, wire.Answer)
        assert answer.error is not None
        assert answer.error.kind == "InvalidRequestError"
        client.socket.close()
        engine = RemoteEngine(url)
        assert (await collect(engine, generate_request("r")))[0] == "hello"
        await engine.close()


async def test_requests_fail_when_the_front_goes_and_work_when_it_is_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_INTERVAL_S", 0.1)
    async with served(folder, "x" * 90, 0.02) as (_, _, url):
        client = RemoteEngine(url)
        events = client.generate(generate_request("r"))
        assert isinstance(await anext(events), Delta)
    with pytest.raises(EngineUnavailableError):
        [event async for event in events]
    assert not (await client.health()).serving
    async with served(folder, "back") as (_, _, _):
        async with asyncio.timeout(5):
            while not (await client.health()).serving:  # noqa: ASYNC110 - seen by asking only
                await asyncio.sleep(0.05)
        assert (await collect(client, generate_request("next")))[0] == "back"
        assert set(await records_of(client)) == {"r", "next"}
        await client.close()


async def test_without_a_front_calls_fail_in_time_and_health_says_so(folder: Path) -> None:
    client = RemoteEngine(f"ipc://{folder}/nobody.sock")
    health = await client.health()
    assert not health.serving
    assert "does not answer" in health.reason
    with pytest.raises(EngineUnavailableError):
        await client.prepare(PrepareRequest(text="x"))
    await client.close()
    with pytest.raises(EngineUnavailableError):
        await client.describe()


async def test_closing_a_client_aborts_its_requests(folder: Path) -> None:
    async with served(folder, "x" * 90, 0.02) as (front, _, url):
        client = RemoteEngine(url)
        events = client.generate(generate_request("r"))
        await anext(events)
        await client.close()
        with pytest.raises(EngineUnavailableError):
            [event async for event in events]
        assert (await until_recorded(front, "r")).outcome == "aborted"


async def test_socket_is_private(folder: Path) -> None:
    async with served(folder) as (_, _, url):
        assert os.stat(url.removeprefix("ipc://")).st_mode & 0o077 == 0  # noqa: PTH116


async def test_burst_of_requests_loses_none(folder: Path) -> None:
    async with served(folder, "ok") as (front, _, url):
        client = RemoteEngine(url)
        ends = await asyncio.gather(
            *(collect(client, generate_request(f"r{index}")) for index in range(1500))
        )
        assert {text for text, _ in ends} == {"ok"}
        assert (await front.health()).journal_backlog == 1500
        await client.close()
