"""Server-sent events: framing, keep-alive, and a response that ends when its client leaves."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from tenora_platform.errors import PlatformError, openai_body
from tenora_platform.http.disconnect import ClientDisconnected, until_disconnected

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE_S: Final = 10.0

_PING: Final = b": ping\n\n"
# Some clients split lines where Unicode does; JSON escapes keep an event one line for them too.
_LINE_BREAKS: Final = (
    ("\x85".encode(), b"\\u0085"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
_encoder = msgspec.json.Encoder()


def event(payload: object) -> bytes:
    """`payload` as one event of exactly one line of JSON."""
    data = _encoder.encode(payload)
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


def error_event(error: PlatformError) -> bytes:
    """The last event of a stream that failed; OpenAI's client raises it as APIError."""
    return event(openai_body(error))


class EventStream(Response[Any]):
    """A stream of framed events. `events` is closed whatever happens to the connection."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(None, headers=dict(headers), media_type="text/event-stream")
        self.events = events
        self._keep_alive_s = keep_alive_s

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        """The ASGI side of this response; called by Litestar."""
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **self.headers}
        return _ASGIEventStream(
            self.events,
            keep_alive_s=self._keep_alive_s,
            headers=headers,
        )


class _ASGIEventStream(ASGIResponse):
    __slots__ = ("_events", "_keep_alive_s", "_sent_at")

    _should_set_content_length = False

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keep_alive_s: float,
        headers: dict[str, Any],
    ) -> None:
        super().__init__(media_type="text/event-stream", headers=headers)
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._sent_at = time.monotonic()

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send all events; a client that leaves ends them and is no error."""
        try:
            await until_disconnected(receive, self._send_events(send))
        except ClientDisconnected:
            return

    async def _send_events(self, send: Send) -> None:
        pinging = asyncio.create_task(self._keep_alive(send))
        try:
            async for data in self._events:
                await _send_part(send, data)
                self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, self._events.aclose(), return_exceptions=True)

    async def _keep_alive(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for a while; events are never interrupted."""
        while True:
            idle_s = time.monotonic() - self._sent_at
            await asyncio.sleep(max(0.0, self._keep_alive_s - idle_s))
            if time.monotonic() - self._sent_at >= self._keep_alive_s:
                await _send_part(send, _PING)
                self._sent_at = time.monotonic()


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
