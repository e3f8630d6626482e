"""Questions to the core that wait for one `Reply` each."""

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeVar

from tenora_engine.core.messages import ProbeAdapter, PurgeRoots, QueryAdapters, Reply, ToCore
from tenora_engine.protocol.errors import EngineError, EngineUnavailableError, ErrorPayload
from tenora_engine.protocol.messages import AdapterState, ProbeReport, PurgeReceipt

PayloadT = TypeVar("PayloadT")


class CoreCalls:
    """Matches replies to questions by `call_id`."""

    def __init__(self, send: Callable[[ToCore], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether the core has a question to work on."""
        return bool(self._waiting)

    async def probe(self, digest: str, prompts: tuple[tuple[int, ...], ...]) -> ProbeReport:
        """Load an adapter and compare it with the base. Raises as `_ask`."""
        reply = await self._ask(
            lambda call_id: ProbeAdapter(call_id=call_id, digest=digest, prompts=prompts),
            timeout_s=240.0,
        )
        return _given(reply.probe)

    async def adapters(self) -> tuple[AdapterState, ...]:
        """Every adapter that the core knows. Raises as `_ask`."""
        reply = await self._ask(lambda call_id: QueryAdapters(call_id=call_id), timeout_s=10.0)
        return _given(reply.adapters)

    async def purge(self, cache_roots: tuple[bytes, ...]) -> PurgeReceipt:
        """Zero what descends from these roots. Raises as `_ask`."""
        reply = await self._ask(
            lambda call_id: PurgeRoots(call_id=call_id, cache_roots=cache_roots), timeout_s=10.0
        )
        return _given(reply.purge)

    def answer(self, reply: Reply) -> None:
        """Hand a reply to who asked; one that nobody waits for is dropped."""
        answered = self._waiting.get(reply.call_id)
        if answered is not None and not answered.done():
            answered.set_result(reply)

    def fail_all(self, error: EngineError) -> None:
        """The core is gone."""
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ErrorPayload.of(error).to_error())

    async def _ask(self, make: Callable[[int], ToCore], *, timeout_s: float) -> Reply:
        """Send the message that `make` builds for a call id, and wait.

        Raises:
            EngineError: what the core answered, that it died, or that it took too long.
        """
        call_id = next(self._ids)
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answered
        self._send(make(call_id))
        try:
            async with asyncio.timeout(timeout_s):
                reply = await answered
        except TimeoutError:
            raise EngineUnavailableError(
                f"The engine's core did not answer in {timeout_s:g} s."
            ) from None
        finally:
            del self._waiting[call_id]
        if reply.error is not None:
            raise reply.error.to_error()
        return reply


def _given(payload: PayloadT | None) -> PayloadT:
    """The payload that this kind of call is answered with."""
    if payload is None:
        raise EngineError("The engine's core answered another question.")
    return payload
