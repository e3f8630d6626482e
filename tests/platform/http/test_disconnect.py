"""The race between work and its client: whoever ends first, nothing is left running."""

import asyncio

import pytest
from litestar.types import Receive

from tenora_platform.http.disconnect import ClientDisconnected, until_disconnected


def _receive(leaves_after_s: float | None) -> Receive:
    async def receive() -> dict[str, object]:
        if leaves_after_s is None:
            await asyncio.Event().wait()
        await asyncio.sleep(leaves_after_s or 0)
        return {"type": "http.disconnect"}

    return receive  # type: ignore[return-value]


async def test_returns_the_result_of_work_that_ends_first() -> None:
    async def work() -> int:
        return 7

    before = asyncio.all_tasks()
    assert await until_disconnected(_receive(None), work()) == 7
    assert asyncio.all_tasks() == before


async def test_raises_what_the_work_raises() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await until_disconnected(_receive(None), work())


async def test_waits_for_the_cleanup_of_work_whose_client_left() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            seen.append("cleaned up")

    with pytest.raises(ClientDisconnected):
        await until_disconnected(_receive(0.01), work())
    assert seen == ["cleaned up"]


async def test_cancels_the_work_when_it_is_cancelled_itself() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    task = asyncio.create_task(until_disconnected(_receive(None), work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cleaned up"]
