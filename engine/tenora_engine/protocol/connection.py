"""The client's end of the wire: one DEALER socket, its session, and what is under way on it.

Knows envelopes, not meanings: `RemoteEngine` turns them into the engine's interface.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable

import msgspec
import zmq

from tenora_engine.protocol import wire
from tenora_engine.protocol.errors import (
    EngineError,
    EngineUnavailableError,
    ErrorPayload,
    InvalidRequestError,
)
from tenora_engine.protocol.loop_socket import LoopSocket
from tenora_engine.protocol.messages import PROTOCOL_VERSION

CONNECT_TIMEOUT_S = 3.0
RETRY_S = 0.05

EventsHandler = Callable[[tuple[wire.StreamEvent, ...]], None]
LossHandler = Callable[[EngineError], None]


class FrontConnection:
    """Connects when first used, and again whenever the front comes back.

    Silence is counted in heartbeats of our own loop, so a stall of this process is never taken
    for a death of the front.
    """

    def __init__(
        self,
        url: str,
        *,
        client_id: str | None,
        on_events: EventsHandler,
        on_lost: LossHandler,
    ) -> None:
        self._url = url
        self._identity = (client_id or "client").encode()[:64] + b"-" + secrets.token_bytes(8)
        self._on_events = on_events
        self._on_lost = on_lost
        self._socket: LoopSocket | None = None
        self._heart: asyncio.Task[None] | None = None
        self._session: str | None = None
        self._has_session = asyncio.Event()
        self._refusal: EngineError | None = None
        self._silence = 0
        self._is_closed = False
        self._call_ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[wire.Answer]] = {}

    async def session(self) -> str:
        """The current session, connecting if there is none.

        Raises:
            EngineUnavailableError: closed, refused, or no front answered in time.
        """
        if self._is_closed:
            raise EngineUnavailableError("This client was closed; make a new one.")
        self._open()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._has_session.wait()
        except TimeoutError:
            raise EngineUnavailableError(
                "The engine does not answer; check that its front is running."
            ) from None
        if self._refusal is not None:
            raise self._refusal
        assert self._session is not None
        return self._session

    def send(self, message: wire.ToFront) -> None:
        """Hand a message to the socket at once, in order.

        Raises:
            InvalidRequestError: the message holds text that is no valid Unicode.
            EngineUnavailableError: there is no connection that could take it.
        """
        frame = _encode(message)
        if self._socket is None:
            raise EngineUnavailableError("There is no connection to the engine.")
        try:
            self._socket.send(frame)
        except zmq.ZMQError:
            raise EngineUnavailableError(
                "The connection to the engine takes nothing now."
            ) from None

    def send_if_possible(self, message: wire.ToFront) -> None:
        """As `send`, where the loss of the session covers the loss of the message."""
        with contextlib.suppress(EngineUnavailableError):
            self.send(message)

    async def call(
        self, method: wire.Method[wire.ArgumentT, wire.ResultT], argument: wire.ArgumentT
    ) -> wire.ResultT:
        """Ask, and wait for the answer.

        Raises:
            EngineError: what the front answered, or that no answer came.
        """
        session = await self.session()
        call_id = next(self._call_ids)
        answered: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        question = wire.Call(
            session=session,
            call_id=call_id,
            method=method.name,
            argument=msgspec.Raw(_encode(argument)),
        )
        self._calls[call_id] = answered
        try:
            self.send(question)
            async with asyncio.timeout(method.timeout_s):
                answer = await answered
        except TimeoutError:
            raise EngineUnavailableError(
                f"The engine did not answer {method.name} in {method.timeout_s:g} s."
            ) from None
        finally:
            self._calls.pop(call_id, None)
        if answer.error is not None:
            raise answer.error.to_error()
        return msgspec.msgpack.decode(answer.result, type=method.result)

    async def close(self) -> None:
        """Say goodbye and release the socket. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._socket is not None:
            self._socket.stop_reading()
        self._lose(EngineUnavailableError("This client was closed."))
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        if self._socket is not None:
            self.send_if_possible(wire.Goodbye())
            self._socket.close(linger_ms=200)
            self._socket = None

    def _open(self) -> None:
        if self._socket is not None:
            return
        socket = LoopSocket(zmq.DEALER, self._on_frames)
        options = socket.options
        options.set(zmq.IDENTITY, self._identity)
        options.set(zmq.LINGER, 0)
        options.set(zmq.RECONNECT_IVL, 50)
        options.set(zmq.RECONNECT_IVL_MAX, 500)
        options.set(zmq.IMMEDIATE, 1)  # queue nothing for a front that is not there
        options.set(zmq.SNDHWM, wire.MAX_QUEUED_MESSAGES)
        options.set(zmq.RCVHWM, wire.MAX_QUEUED_MESSAGES)
        options.set(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        socket.connect(self._url)
        self._socket = socket
        self._heart = asyncio.create_task(self._beat(), name="front-heartbeat")

    async def _beat(self) -> None:
        while True:
            self.send_if_possible(wire.Heartbeat(protocol_version=PROTOCOL_VERSION))
            if self._session is None:
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(wire.HEARTBEAT_INTERVAL_S)
            self._silence += 1
            if self._silence >= wire.FRONT_SILENCE_LIMIT and self._session is not None:
                self._lose(EngineUnavailableError("The engine stopped answering."))

    def _on_frames(self, frames: list[bytes]) -> None:
        self._silence = 0
        with contextlib.suppress(msgspec.DecodeError):
            self._dispatch(wire.to_client_decoder.decode(frames[0]))

    def _dispatch(self, message: wire.ToClient) -> None:
        match message:
            case wire.StreamEvents(events=events):
                self._on_events(events)
            case wire.Answer(call_id=call_id):
                waiting = self._calls.get(call_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case wire.Pulse():
                self._on_pulse(message)

    def _on_pulse(self, pulse: wire.Pulse) -> None:
        self._refusal = pulse.error.to_error() if pulse.error else None
        if self._session not in (None, pulse.session):
            self._lose(EngineUnavailableError("The engine restarted and lost the request."))
        self._session = pulse.session
        self._has_session.set()

    def _lose(self, error: EngineError) -> None:
        """End everything under way: the front will never speak of it again."""
        self._session = None
        self._has_session.clear()
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(ErrorPayload.of(error).to_error())
        self._on_lost(error)


def _encode(message: object) -> bytes:
    try:
        return wire.encoder.encode(message)
    except UnicodeEncodeError as error:
        raise InvalidRequestError("The text is no valid Unicode.") from error
