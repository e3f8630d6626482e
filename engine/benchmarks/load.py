"""A closed-loop load generator over HTTP: a fixed number of clients, each one request at a time.

It speaks just enough HTTP/1.1 and server-sent events to keep its own cost far below the
server's, because on a small machine both share the cores.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
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
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(head.encode() + payload.encode())
        await _expect_ok(reader)
        return await _read_stream(reader, started)
    finally:
        writer.close()


async def _expect_ok(reader: asyncio.StreamReader) -> None:
    status = await reader.readline()
    while (await reader.readline()).strip():
        pass
    if b" 200 " not in status:
        body = await reader.read(4096)
        raise RequestFailedError(f"{status.decode().strip()}: {body.decode(errors='replace')}")


async def _read_stream(reader: asyncio.StreamReader, started: float) -> Sample:
    first = finished = 0.0
    usage: dict[str, Any] | None = None
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        now = time.perf_counter()
        if line.startswith(b"data: [DONE]"):
            break
        if not first:
            first = now
        if b'"usage":{' in line:
            usage = json.loads(line[6:])["usage"]
        elif b'"error":{' in line:
            raise RequestFailedError(line.decode())
        else:
            finished = now
    if usage is None:
        raise RequestFailedError("the stream ended without usage")
    details = usage.get("prompt_tokens_details") or {}
    return Sample(
        started, first, finished, usage["completion_tokens"], details.get("cached_tokens", 0)
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
