"""Answers a client's calls: from method names and raw arguments to the engine and back."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from tenora_engine.protocol import wire
from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.errors import (
    EngineError,
    EngineOverloadedError,
    ErrorPayload,
    InvalidRequestError,
)

log = structlog.get_logger(__name__)

MAX_CALLS = 4096
"""Calls under way, of all clients together."""

Handler = Callable[[Any], Awaitable[object]]


class FrontCalls:
    """Whatever goes wrong becomes an error in the answer, without internals."""

    def __init__(self, engine: EngineClient) -> None:
        self._num_running = 0
        handlers: list[tuple[wire.Method[Any, Any], Handler]] = [
            (wire.DESCRIBE, lambda _: engine.describe()),
            (wire.HEALTH, lambda _: engine.health()),
            (wire.PREPARE, engine.prepare),
            (wire.INSPECT_ADAPTER, engine.inspect_adapter),
            (wire.PROBE_ADAPTER, engine.probe_adapter),
            (wire.ADAPTER_STATES, lambda _: engine.adapter_states()),
            (wire.PURGE_SCOPE, engine.purge_scope),
            (wire.PULL_USAGE, lambda limit: engine.pull_usage(limit=limit)),
            (wire.ACKNOWLEDGE_USAGE, lambda seq: engine.acknowledge_usage(up_to_seq=seq)),
        ]
        self._handlers = {method.name: (method, handler) for method, handler in handlers}

    async def answer(self, call: wire.Call) -> wire.Answer:
        """Run one call to its end."""
        self._num_running += 1
        try:
            result = msgspec.Raw(wire.encoder.encode(await self._run(call)))
        except EngineError as error:
            return wire.Answer(call_id=call.call_id, error=ErrorPayload.of(error))
        except Exception:
            log.exception("call_failed", method=call.method)
            failure = EngineError("The engine failed on this call; its log says why.")
            return wire.Answer(call_id=call.call_id, error=ErrorPayload.of(failure))
        else:
            return wire.Answer(call_id=call.call_id, result=result)
        finally:
            self._num_running -= 1

    async def _run(self, call: wire.Call) -> object:
        if self._num_running > MAX_CALLS:
            raise EngineOverloadedError("Too many calls are under way.", retry_after_s=1.0)
        known = self._handlers.get(call.method)
        if known is None:
            raise InvalidRequestError(f"The engine has no method {call.method!r}.")
        method, handler = known
        try:
            argument = msgspec.msgpack.decode(call.argument, type=method.argument)
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"The argument of {method.name} is malformed.") from error
        return await handler(argument)
