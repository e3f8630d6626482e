"""An engine in another process, as an `EngineClient`: many requests over one ZeroMQ socket."""

from collections.abc import AsyncGenerator

from tenora_engine.protocol import wire
from tenora_engine.protocol.connection import FrontConnection
from tenora_engine.protocol.errors import EngineError, ErrorPayload, InvalidRequestError
from tenora_engine.protocol.inbox import EventInbox
from tenora_engine.protocol.messages import (
    AdapterRef,
    AdapterReport,
    AdapterState,
    EngineInfo,
    Finished,
    GenerateEvent,
    GenerateRequest,
    Health,
    InspectRequest,
    PreparedPrompt,
    PrepareRequest,
    ProbeReport,
    PurgeReceipt,
    UsageBatch,
)


class RemoteEngine:
    """Speaks to the front at `url` (for example `ipc:///run/tenora/engine.sock`).

    Connects when first used and reconnects for ever. A request that was running when the front
    died fails within about three seconds with `EngineUnavailableError`; it is never sent twice.
    Belongs to one event loop. `client_id` only helps to read the front's logs.
    """

    def __init__(self, url: str, client_id: str | None = None) -> None:
        self._inboxes: dict[str, EventInbox] = {}
        self._connection = FrontConnection(
            url, client_id=client_id, on_events=self._deliver, on_lost=self._fail_all
        )

    async def describe(self) -> EngineInfo:
        """See `EngineClient.describe`."""
        return await self._connection.call(wire.DESCRIBE, None)

    async def health(self) -> Health:
        """See `EngineClient.health`."""
        try:
            return await self._connection.call(wire.HEALTH, None)
        except EngineError as error:
            return Health(serving=False, reason=error.message)

    async def prepare(self, request: PrepareRequest) -> PreparedPrompt:
        """See `EngineClient.prepare`."""
        return await self._connection.call(wire.PREPARE, request)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `EngineClient.generate`."""
        request_id = request.request_id
        if request_id in self._inboxes:
            raise InvalidRequestError("A request with this id is running.", param="request_id")
        inbox = self._inboxes[request_id] = EventInbox()
        session, is_over = "", False
        try:
            session = await self._connection.session()
            self._connection.send(wire.StartGeneration(session=session, request=request))
            while True:
                event = await inbox.get()
                is_over = isinstance(event, Finished)
                yield event
                if is_over:
                    return
        except EngineError:
            is_over = True
            raise
        finally:
            del self._inboxes[request_id]
            if session and not is_over:
                self._connection.send(wire.AbortGeneration(session=session, request_id=request_id))

    async def inspect_adapter(self, request: InspectRequest) -> AdapterReport:
        """See `EngineClient.inspect_adapter`."""
        return await self._connection.call(wire.INSPECT_ADAPTER, request)

    async def probe_adapter(self, ref: AdapterRef) -> ProbeReport:
        """See `EngineClient.probe_adapter`."""
        return await self._connection.call(wire.PROBE_ADAPTER, ref)

    async def adapter_states(self) -> tuple[AdapterState, ...]:
        """See `EngineClient.adapter_states`."""
        return await self._connection.call(wire.ADAPTER_STATES, None)

    async def purge_scope(self, cache_scope: bytes) -> PurgeReceipt:
        """See `EngineClient.purge_scope`."""
        return await self._connection.call(wire.PURGE_SCOPE, cache_scope)

    async def pull_usage(self, *, limit: int) -> UsageBatch:
        """See `EngineClient.pull_usage`."""
        return await self._connection.call(wire.PULL_USAGE, limit)

    async def acknowledge_usage(self, *, up_to_seq: int) -> None:
        """See `EngineClient.acknowledge_usage`."""
        await self._connection.call(wire.ACKNOWLEDGE_USAGE, up_to_seq)

    async def close(self) -> None:
        """See `EngineClient.close`."""
        await self._connection.close()

    def _deliver(self, events: tuple[wire.StreamEvent, ...]) -> None:
        for item in events:
            inbox = self._inboxes.get(item.request_id)
            if inbox is None:
                continue  # its reader left; the abort is on its way
            if item.error is not None:
                inbox.put(item.error.to_error())
            elif item.event is not None:
                inbox.put(item.event)

    def _fail_all(self, error: EngineError) -> None:
        for inbox in self._inboxes.values():
            inbox.put(ErrorPayload.of(error).to_error())
