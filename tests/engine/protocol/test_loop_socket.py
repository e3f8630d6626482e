"""`LoopSocket`: every message once and in order, whatever a handler does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count, pairwise
from pathlib import Path

import pytest
import zmq

from tenora_engine.protocol.loop_socket import FramesHandler, LoopSocket

MANY = 1000


class Pair:
    """Two sockets that are connected, and what each has heard."""

    def __init__(self, url: str) -> None:
        self.heard: list[list[bytes]] = []
        self.answers: list[list[bytes]] = []
        self.server = LoopSocket(zmq.PAIR, self._hear)
        self.client = LoopSocket(zmq.PAIR, self.answers.append)
        self.reply: FramesHandler = lambda frames: None
        self.server.bind(url)
        self.client.connect(url)

    def _hear(self, frames: list[bytes]) -> None:
        self.heard.append(frames)
        self.reply(frames)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(f"ipc://{tmp_path}/s")
    yield made
    made.client.close(0)
    made.server.close(0)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - what it waits for is a list
            await asyncio.sleep(0.001)


async def send(socket: LoopSocket, *frames: bytes) -> None:
    """Send, as soon as the socket takes it."""
    async with asyncio.timeout(20):
        while True:
            try:
                socket.send(*frames)
            except zmq.Again:
                await asyncio.sleep(0.001)
            else:
                return


async def test_every_message_arrives_once_and_in_order(pair: Pair) -> None:
    for number in range(MANY):
        await send(pair.client, b"%d" % number, b"more")
    await until(lambda: len(pair.heard) >= MANY)
    assert pair.heard == [[b"%d" % number, b"more"] for number in range(MANY)]


async def test_nothing_is_missed_where_both_sides_talk_at_once(pair: Pair) -> None:
    numbers = count()

    def reply(frames: list[bytes]) -> None:
        pair.server.send(b"answer", *frames)
        if next(numbers) % 3 == 0:
            pair.server.send(b"aside")

    pair.reply = reply
    for number in range(MANY):
        await send(pair.client, b"%d" % number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    answered = [[b"answer", b"%d" % number] for number in range(MANY)]
    await until(lambda: len(pair.answers) >= MANY + (MANY + 2) // 3)
    assert [frames for frames in pair.answers if frames != [b"aside"]] == answered


async def test_a_handler_that_raises_costs_its_message_alone(pair: Pair) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context.get("exception"))
    )

    def reply(frames: list[bytes]) -> None:
        if frames == [b"bad"]:
            raise LookupError("no such thing")

    pair.reply = reply
    for frame in (b"one", b"bad", b"two"):
        await send(pair.client, frame)
    await until(lambda: len(pair.heard) == 3)
    assert [type(error) for error in reported] == [LookupError]


async def test_a_handler_may_close_its_socket(pair: Pair) -> None:
    pair.reply = lambda frames: pair.server.close(0)
    for frame in (b"last", b"unread"):
        await send(pair.client, frame)
    await until(lambda: pair.heard)
    await asyncio.sleep(0.05)
    assert pair.heard == [[b"last"]]
    with pytest.raises(zmq.ZMQError):
        pair.server.send(b"late")


async def test_others_have_a_turn_while_many_messages_wait(pair: Pair) -> None:
    turns: list[int] = []
    pair.reply = lambda frames: None
    await send(pair.client, b"hello")
    await until(lambda: pair.heard)
    for number in range(MANY):
        await send(pair.client, b"%d" % number)
    # the last of them is sent, none of them is read: the loop has had no turn since
    while len(pair.heard) < MANY + 1:
        turns.append(len(pair.heard))
        await asyncio.sleep(0)
    assert max(b - a for a, b in pairwise(turns)) <= 2 * 64


async def test_a_socket_that_takes_nothing_says_so(tmp_path: Path) -> None:
    lonely = LoopSocket(zmq.PAIR, lambda frames: None)
    lonely.options.set(zmq.IMMEDIATE, 1)
    lonely.connect(f"ipc://{tmp_path}/nobody")
    with pytest.raises(zmq.Again):
        lonely.send(b"x")
    lonely.close(0)
    lonely.close(0)
