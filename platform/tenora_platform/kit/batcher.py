"""One question for many who ask at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

GroupT = TypeVar("GroupT", bound=Hashable)
KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Batcher(Generic[GroupT, KeyT, ValueT]):
    """Whoever asks while an answer of the same group is under way shares the next one.

    Nobody waits to be joined by others, and every answer was looked up after it was asked for.
    Groups never share a question. `fetch` is told a group and its keys; a key that it leaves out of
    its answer has none, and what it raises reaches all who asked. For one event loop.
    """

    def __init__(
        self, fetch: Callable[[GroupT, Sequence[KeyT]], Awaitable[Mapping[KeyT, ValueT]]]
    ) -> None:
        self._fetch = fetch
        self._asked: dict[GroupT, dict[KeyT, asyncio.Future[ValueT | None]]] = {}
        self._fetching: dict[GroupT, asyncio.Task[None]] = {}

    async def get(self, group: GroupT, key: KeyT) -> ValueT | None:
        """The answer for `key`, or None if there is none. Raises what `fetch` raises."""
        asked = self._asked.setdefault(group, {})
        answer = asked.get(key)
        if answer is None:
            answer = asked[key] = asyncio.get_running_loop().create_future()
        if group not in self._fetching:
            self._fetching[group] = asyncio.create_task(self._answer_all(group))
        # shielded: one who leaves does not take the answer from the others
        return await asyncio.shield(answer)

    async def _answer_all(self, group: GroupT) -> None:
        try:
            while (asked := self._asked.pop(group, None)) is not None:
                await self._answer(group, asked)
        finally:
            del self._fetching[group]

    async def _answer(
        self, group: GroupT, asked: Mapping[KeyT, "asyncio.Future[ValueT | None]"]
    ) -> None:
        try:
            found = await self._fetch(group, tuple(asked))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who asked are told
            for answer in asked.values():
                answer.set_exception(error)
                answer.exception()  # seen, also where all who asked have left
        else:
            for key, answer in asked.items():
                answer.set_result(found.get(key))
        finally:
            for answer in asked.values():
                answer.cancel()  # only where the fetch itself was cancelled: nothing else is open
