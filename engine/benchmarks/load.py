"""A closed-loop load generator over HTTP: a fixed number of clients, each one request at a time.

It speaks just enough HTTP/1.1 and server-sent events to keep its own cost far below the
server's, because on a small machine both share the cores.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Sample:
    """One finished request; times in seconds of `time.perf_counter`."""

    started: float
    first_token: float
    finished: float
    completion_tokens: int
    cached_tokens: int

    @property
    def ttft_ms(self) -> float:
        """Time to first token."""
        return (self.first_token - self.started) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.completion_tokens < 2:
            return None
        return (self.finished - self.first_token) * 1e3 / (self.completion_tokens - 1)


class RequestFailedError(Exception):
    """The server answered with an error."""


async def stream_completion(base_url: str, api_key: str, body: dict[str, Any]) -> Sample:
    """POST `/v1/completions` streamed, and time it.

    Raises:
        RequestFailedError: any answer but a complete stream.
    """
    url = urlsplit(base_url)
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n"
        f"Authorization: Bearer {api_key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    request = head.encode() + payload.encode()
    loop = asyncio.get_running_loop()
    exchange = _Exchange(request, loop.create_future())
    started = time.perf_counter()
    transport, _ = await loop.create_connection(lambda: exchange, url.hostname, url.port)
    try:
        return exchange.sample(started, await exchange.ended)
    finally:
        transport.close()


_EVENT, _DONE, _USAGE, _ERROR = b"data: ", b"data: [DONE]", b'"usage":{', b'"error":{'
_LONGEST_MARK = max(len(mark) for mark in (_EVENT, _DONE, _USAGE, _ERROR))


class _Exchange(asyncio.Protocol):
    """One request and its stream. Looks for a few marks in what arrives, and reads it at the end.

    A line at a time, through a stream reader, cost as much as the server's own part of it.
    """

    def __init__(self, request: bytes, ended: "asyncio.Future[bytes]") -> None:
        self.ended = ended
        self._request = request
        self._parts: list[bytes] = []
        self._end_of_last = b""
        self._first = self._finished = 0.0
        self._usage_seen = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note when events come; a mark may be cut in two by the network."""
        now = time.perf_counter()
        self._parts.append(data)
        seen = self._end_of_last + data
        self._end_of_last = seen[1 - _LONGEST_MARK :]
        if not self._first and _EVENT in seen:
            self._first = now
        before_usage, usage, _ = seen.partition(_USAGE)
        if not self._usage_seen and before_usage.count(_EVENT) > (1 if usage else 0):
            self._finished = now
        self._usage_seen = self._usage_seen or bool(usage)
        if _DONE in seen or _ERROR in seen:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        if exc is not None and not self.ended.done():
            self.ended.set_exception(RequestFailedError(f"the connection was lost: {exc}"))
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(b"".join(self._parts))

    def sample(self, started: float, answer: bytes) -> Sample:
        """What the whole `answer` says. Raises RequestFailedError."""
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head.partition(b"\r\n")[0]
        if b" 200 " not in status + b" " or _ERROR in body:
            text = body[max(0, body.find(_ERROR)) :][:4096].decode(errors="replace")
            raise RequestFailedError(f"{status.decode(errors='replace')}: {text}")
        _, usage, rest = body.partition(_USAGE)
        if not usage:
            raise RequestFailedError("the stream ended without usage")
        counts, _ = json.JSONDecoder().raw_decode("{" + rest.decode(errors="replace"))
        details = counts.get("prompt_tokens_details") or {}
        return Sample(
            started,
            self._first,
            self._finished,
            counts["completion_tokens"],
            details.get("cached_tokens", 0),
        )


async def closed_loop(
    base_url: str, api_key: str, bodies: Sequence[dict[str, Any]], concurrency: int
) -> tuple[list[Sample], float]:
    """Run all `bodies` with `concurrency` clients; returns the samples and the wall time in s."""
    queue = list(reversed(bodies))
    samples: list[Sample] = []

    async def client() -> None:
        while queue:
            samples.append(await stream_completion(base_url, api_key, queue.pop()))

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return samples, time.perf_counter() - started
