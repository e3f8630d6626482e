"""The events of one generation between whoever produces them and the one who iterates."""

import asyncio

from tenora_engine.protocol.errors import EngineError
from tenora_engine.protocol.messages import Delta, Finished, GenerateEvent


class EventInbox:
    """Keeps order, loses nothing, and is bounded by the output itself.

    Deltas that wait are merged into one, so a slow reader costs no more memory than its text.
    One reader; producers run on the same event loop.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._end: Finished | EngineError | None = None
        self._filled = asyncio.Event()

    def put(self, event: GenerateEvent | EngineError) -> None:
        """Add an event. Whatever comes after the end is dropped."""
        if self._end is not None:
            return
        if isinstance(event, Delta):
            self._texts.append(event.text)
            self._token_ids.extend(event.token_ids)
        else:
            self._end = event
        self._filled.set()

    async def get(self) -> GenerateEvent:
        """The next event: all waiting deltas as one, then the end.

        Raises:
            EngineError: the generation ended with one.
        """
        await self._filled.wait()
        if self._texts:
            delta = Delta(text="".join(self._texts), token_ids=tuple(self._token_ids))
            self._texts.clear()
            self._token_ids.clear()
            if self._end is None:
                self._filled.clear()
            return delta
        if isinstance(self._end, EngineError):
            raise self._end
        assert self._end is not None, "filled without an event"
        return self._end
