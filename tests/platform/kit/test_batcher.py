"""`Batcher`: one question for many, never across groups, never with an answer from before."""

import asyncio
import gc
from collections.abc import Mapping, Sequence

import pytest

from tenora_platform.kit.batcher import Batcher

Asked = list[tuple[str, tuple[int, ...]]]


class Source:
    """Ten times the key, and nothing for 0. Waits for `gate`, and notes its questions."""

    def __init__(self) -> None:
        self.asked: Asked = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def fetch(self, group: str, keys: Sequence[int]) -> Mapping[int, int]:
        self.asked.append((group, tuple(keys)))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {key: 10 * key for key in keys if key}


async def test_who_asks_while_an_answer_is_under_way_shares_the_next() -> None:
    source = Source()
    batcher = Batcher(source.fetch)
    first = asyncio.create_task(batcher.get("a", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(batcher.get("a", key)) for key in (2, 1, 2, 0)]
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(first, *others) == [10, 20, 10, 20, None]
    assert source.asked == [("a", (1,)), ("a", (2, 1, 0))]


async def test_groups_do_not_share_a_question() -> None:
    source = Source()
    batcher = Batcher(source.fetch)
    tasks = [asyncio.create_task(batcher.get(group, 1)) for group in "abab"]
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(*tasks) == [10] * 4
    assert sorted(source.asked) == [("a", (1,)), ("b", (1,))]


async def test_an_error_reaches_all_who_asked_and_nobody_later() -> None:
    source = Source()
    batcher = Batcher(source.fetch)
    source.error = LookupError("away")
    source.gate.set()
    outcomes = await asyncio.gather(
        *(batcher.get("a", key) for key in (1, 2)), return_exceptions=True
    )
    assert [type(one) for one in outcomes] == [LookupError, LookupError]
    source.error = None
    assert await batcher.get("a", 1) == 10


async def test_one_who_leaves_does_not_take_the_answer_from_the_others() -> None:
    source = Source()
    batcher = Batcher(source.fetch)
    leaving, staying = (asyncio.create_task(batcher.get("a", 1)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    source.gate.set()
    assert await staying == 10
    assert source.asked == [("a", (1,))]


async def test_an_error_that_nobody_waits_for_any_more_is_not_reported() -> None:
    source = Source()
    batcher = Batcher(source.fetch)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    leaving = asyncio.create_task(batcher.get("a", 1))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    source.error = LookupError("away")
    source.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []


async def test_nothing_is_kept_when_all_are_answered() -> None:
    source = Source()
    batcher = Batcher(source.fetch)
    source.gate.set()
    for _ in range(3):
        assert await batcher.get("a", 1) == 10
    await asyncio.sleep(0)
    assert (batcher._asked, batcher._fetching) == ({}, {})
    assert len(source.asked) == 3
