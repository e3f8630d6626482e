"""Serves an `EngineFront` to other processes: a ROUTER socket that speaks `protocol.wire`.

A client may only see and abort requests of its own session. A client that stays silent, says
goodbye or cannot be reached loses its session and with it all its requests.
"""

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import structlog
import zmq

from tenora_engine.front.clients import ClientSession
from tenora_engine.front.front_calls import FrontCalls
from tenora_engine.front.service import EngineFront
from tenora_engine.protocol import wire
from tenora_engine.protocol.errors import (
    EngineError,
    EngineUnavailableError,
    ErrorPayload,
    InvalidRequestError,
)
from tenora_engine.protocol.loop_socket import LoopSocket
from tenora_engine.protocol.messages import PROTOCOL_VERSION, GenerateRequest

log = structlog.get_logger(__name__)

_IPC = "ipc://"


class FrontServer:
    """`start` binds, `close` flushes and unbinds. One per front."""

    def __init__(self, engine: EngineFront, url: str) -> None:
        self._engine = engine
        self._url = url
        self._calls = FrontCalls(engine)
        self._clients: dict[bytes, ClientSession] = {}
        self._socket: LoopSocket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind the address and serve.

        Raises:
            zmq.ZMQError: the address cannot be bound.
        """
        self._bind()
        self._tasks.add(asyncio.create_task(self._watch_silence(), name="server-silence"))

    async def close(self) -> None:
        """Send what has gathered and release the address. Requests of clients are aborted."""
        if self._socket is not None:
            self._socket.stop_reading()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            client.flush()
        for identity in list(self._clients):
            self._drop(identity, "server closes")
        self._unbind()

    def _bind(self) -> None:
        socket = LoopSocket(zmq.ROUTER, self._on_frames)
        options = socket.options
        options.set(zmq.ROUTER_MANDATORY, 1)
        options.set(zmq.ROUTER_HANDOVER, 1)
        options.set(zmq.SNDHWM, wire.MAX_QUEUED_MESSAGES)
        options.set(zmq.RCVHWM, wire.MAX_QUEUED_MESSAGES)
        options.set(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        try:
            socket.bind(self._url)
        except zmq.ZMQError:
            socket.close(linger_ms=0)
            raise
        self._socket = socket
        if self._url.startswith(_IPC):
            Path(self._url.removeprefix(_IPC)).chmod(0o600)

    def _unbind(self) -> None:
        if self._socket is None:
            return
        self._socket.close(linger_ms=500)
        self._socket = None
        if self._url.startswith(_IPC):
            Path(self._url.removeprefix(_IPC)).unlink(missing_ok=True)

    def _on_frames(self, frames: list[bytes]) -> None:
        identity, *rest = frames
        try:
            self._handle(identity, wire.to_front_decoder.decode(b"".join(rest)))
        except msgspec.DecodeError as error:
            log.warning("client_message_unreadable", error=str(error))

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(wire.HEARTBEAT_INTERVAL_S)
            for identity, client in list(self._clients.items()):
                client.silence += 1
                if client.silence > wire.CLIENT_SILENCE_LIMIT:
                    self._drop(identity, "silent")

    def _handle(self, identity: bytes, message: wire.ToFront) -> None:
        if isinstance(message, wire.Heartbeat):
            self._on_heartbeat(identity, message)
            return
        client = self._clients.get(identity)
        if client is not None:
            client.silence = 0
        match message:
            case wire.Goodbye():
                self._drop(identity, "goodbye")
            case wire.Call():
                self._on_call(identity, client, message)
            case wire.StartGeneration():
                self._on_start(identity, client, message)
            case wire.AbortGeneration(request_id=request_id):
                if client is not None and request_id in client.running:
                    client.running.discard(request_id)
                    self._engine.abort(request_id)

    def _on_heartbeat(self, identity: bytes, beat: wire.Heartbeat) -> None:
        refusal = wire.error_of_version(beat.protocol_version)
        if refusal is not None:
            payload = ErrorPayload.of(refusal)
            self._send(
                identity,
                wire.Pulse(protocol_version=PROTOCOL_VERSION, session="", error=payload),
            )
            return
        client = self._clients.get(identity)
        if client is None:
            client = ClientSession(partial(self._send, identity))
            self._clients[identity] = client
            log.info("client_connected", client=_readable(identity))
        client.silence = 0
        self._send(identity, wire.Pulse(protocol_version=PROTOCOL_VERSION, session=client.session))

    def _on_call(self, identity: bytes, client: ClientSession | None, call: wire.Call) -> None:
        if client is None or client.session != call.session:
            error = ErrorPayload.of(_session_is_over())
            self._send(identity, wire.Answer(call_id=call.call_id, error=error))
            return
        task = asyncio.create_task(self._answer(identity, call), name=f"call-{call.method}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, identity: bytes, call: wire.Call) -> None:
        self._send(identity, await self._calls.answer(call))

    def _on_start(
        self, identity: bytes, client: ClientSession | None, start: wire.StartGeneration
    ) -> None:
        request_id = start.request.request_id
        if client is None or client.session != start.session:
            self._refuse(identity, request_id, _session_is_over())
            return
        if request_id in client.running:
            self._refuse(identity, request_id, InvalidRequestError("This id is running."))
            return
        try:
            self._submit(client, start.request)
        except EngineError as error:
            self._refuse(identity, request_id, error)

    def _submit(self, client: ClientSession, request: GenerateRequest) -> None:
        self._engine.submit(request, partial(client.deliver, request.request_id))
        client.running.add(request.request_id)

    def _refuse(self, identity: bytes, request_id: str, error: EngineError) -> None:
        event = wire.StreamEvent(request_id=request_id, error=ErrorPayload.of(error))
        self._send(identity, wire.StreamEvents(events=(event,)))

    def _drop(self, identity: bytes, reason: str) -> None:
        client = self._clients.pop(identity, None)
        if client is None:
            return
        log.info(
            "client_gone",
            client=_readable(identity),
            reason=reason,
            num_aborted=len(client.running),
        )
        for request_id in client.running:
            self._engine.abort(request_id)

    def _send(self, identity: bytes, message: wire.ToClient) -> None:
        """Hand over at once; a client that cannot take it is lost, never half served."""
        if self._socket is None:
            return
        try:
            self._socket.send(identity, wire.encoder.encode(message))
        except zmq.ZMQError:
            asyncio.get_running_loop().call_soon(self._drop, identity, "unreachable")


def _session_is_over() -> EngineUnavailableError:
    return EngineUnavailableError("The session with the engine has ended; try again.")


def _readable(identity: bytes) -> str:
    return identity.rpartition(b"-")[0].decode(errors="replace")
