"""The load generator's reader: what it makes of an answer, however the network cuts it."""

import asyncio
import json
from collections.abc import Sequence
from itertools import chain, repeat

import pytest
from load import RequestFailedError, Sample, stream_completion

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"completion_tokens": 3, "prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 2}}


def chunk(text: str) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text.encode()), text.encode())


def event(payload: object) -> bytes:
    return chunk(f"data: {json.dumps(payload, separators=(',', ':'))}\n\n")


DELTAS = [event({"choices": [{"text": text}], "usage": None}) for text in ("Aé", "b", "")]
END = event({"choices": [], "usage": USAGE}) + chunk("data: [DONE]\n\n")


async def ask(parts: Sequence[bytes], pauses_s: Sequence[float] = ()) -> Sample:
    """The sample of one request to a server that answers with `parts`, each after its pause."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part, pause_s in zip(parts, chain(pauses_s, repeat(0.0)), strict=False):
            await asyncio.sleep(pause_s)
            writer.write(part)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server:
        return await stream_completion(f"http://127.0.0.1:{port}/v1", "key", {"prompt": [1]})


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
async def test_a_stream_is_counted_however_it_is_cut(size: int) -> None:
    whole = HEAD + b"".join(DELTAS) + END
    sample = await ask([whole[i : i + size] for i in range(0, len(whole), size)])
    assert (sample.completion_tokens, sample.cached_tokens) == (3, 2)
    assert sample.started < sample.first_token <= sample.finished


async def test_times_are_those_of_the_first_and_the_last_text() -> None:
    sample = await ask([HEAD, *DELTAS, END], pauses_s=[0, 0.2, 0.1, 0.1, 1.5])
    assert sample.first_token - sample.started >= 0.19
    assert 0.19 <= sample.finished - sample.first_token < 1.5


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 7\r\n\r\n", b"no more"],
        [HEAD, DELTAS[0], event({"error": {"message": "lost"}})],
        [HEAD, *DELTAS],
        [],
    ],
    ids=["refused", "an error event", "cut off", "no answer"],
)
async def test_whatever_is_no_complete_stream_is_an_error(parts: Sequence[bytes]) -> None:
    with pytest.raises(RequestFailedError):
        await ask(parts)
