"""What the replica said about itself, asked for once in a while and not once a request."""

import asyncio

from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.errors import EngineError
from tenora_engine.protocol.messages import EngineInfo
from tenora_platform.engine_errors import from_engine
from tenora_platform.kit.clock import Clock


class EngineFacts:
    """A cache of `EngineClient.describe`, at most `ttl_s` old while the engine answers."""

    def __init__(self, engine: EngineClient, clock: Clock, ttl_s: float = 5.0) -> None:
        self._engine = engine
        self._clock = clock
        self._ttl_s = ttl_s
        self._info: EngineInfo | None = None
        self._fresh_until = 0.0
        self._lock = asyncio.Lock()

    async def info(self) -> EngineInfo:
        """The facts; those last known while the engine is down.

        Raises ServiceUnavailable if it was never reached.
        """
        if self._info is None or self._clock.monotonic() >= self._fresh_until:
            async with self._lock:
                if self._info is None or self._clock.monotonic() >= self._fresh_until:
                    self._info = await self._describe()
                    self._fresh_until = self._clock.monotonic() + self._ttl_s
        return self._info

    async def _describe(self) -> EngineInfo:
        try:
            return await self._engine.describe()
        except EngineError as error:
            if self._info is None:
                raise from_engine(error) from error
            return self._info
