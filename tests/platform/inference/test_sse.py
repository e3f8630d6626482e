"""Framing: one event is one line for every client, and idle streams stay alive."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from litestar.types import Message

from tenora_platform.errors import ServiceUnavailable
from tenora_platform.inference import sse

_BREAKS = "\n \r \x0b \x0c \x1c \x1d \x1e \x85 \u2028 \u2029"


@pytest.mark.parametrize("text", [_BREAKS, "plain", "日本語 😀", "", '"\\', "\0"])
def test_an_event_is_one_line_whoever_splits_it(text: str) -> None:
    framed = sse.event({"text": text}).decode()
    assert framed.endswith("\n\n")
    (line,) = framed.removesuffix("\n\n").splitlines()
    assert json.loads(line.removeprefix("data: ")) == {"text": text}


def test_an_error_is_one_event_with_openais_object() -> None:
    line = sse.error_event(ServiceUnavailable("Down.", code="engine_unavailable")).decode()
    assert json.loads(line.removeprefix("data: "))["error"]["code"] == "engine_unavailable"


async def _answer(
    events: AsyncGenerator[bytes, None], *, leaves_after_s: float | None, keep_alive_s: float = 9.0
) -> list[bytes]:
    """What a client receives until it leaves or the stream ends."""
    sent: list[Message] = []

    async def receive() -> Any:
        await asyncio.sleep(leaves_after_s or 3600)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    stream = sse.EventStream(events, headers={"x-one": "1"}, keep_alive_s=keep_alive_s)
    scope: Any = {}
    await stream.to_asgi_response()(scope, receive, send)
    (start, *parts) = sent
    headers = dict(start["headers"])  # type: ignore[typeddict-item]
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-one"] == b"1"
    assert b"content-length" not in headers
    return [part["body"] for part in parts]  # type: ignore[typeddict-item]


async def test_sends_every_event_and_then_ends() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"a"
        yield b"b"

    assert await _answer(events(), leaves_after_s=None) == [b"a", b"b", b""]


async def test_an_idle_stream_sends_comments() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await asyncio.sleep(0.12)
        yield b"b"

    parts = await _answer(events(), leaves_after_s=None, keep_alive_s=0.05)
    assert parts[0] == b"a"
    assert parts[-2:] == [b"b", b""]
    assert set(parts[1:-2]) == {b": ping\n\n"}


async def test_closes_the_events_when_the_client_leaves() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    before = asyncio.all_tasks()
    assert await _answer(events(), leaves_after_s=0.02) == [b"a"]
    assert closed == [True]
    assert asyncio.all_tasks() == before
