"""What the server knows of each connected client: its session, its requests, its silence."""

import asyncio
import secrets
from collections.abc import Callable

from tenora_engine.protocol.errors import EngineError, ErrorPayload
from tenora_engine.protocol.messages import Finished, GenerateEvent
from tenora_engine.protocol.wire import StreamEvent, StreamEvents

SendEvents = Callable[[StreamEvents], None]


class ClientSession:
    """One session of one client. Events gather during a step and leave as one message."""

    def __init__(self, send: SendEvents) -> None:
        self.session = secrets.token_hex(8)
        self.running: set[str] = set()
        self.silence = 0
        self._send = send
        self._gathered: list[StreamEvent] = []
        self._loop = asyncio.get_running_loop()

    def deliver(self, request_id: str, event: GenerateEvent | EngineError) -> None:
        """Queue an event; whatever else this turn of the event loop brings goes with it."""
        if isinstance(event, EngineError):
            item = StreamEvent(request_id=request_id, error=ErrorPayload.of(event))
        else:
            item = StreamEvent(request_id=request_id, event=event)
        if isinstance(event, (Finished, EngineError)):
            self.running.discard(request_id)
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(item)

    def flush(self) -> None:
        """Send what has gathered."""
        if self._gathered:
            events, self._gathered = tuple(self._gathered), []
            self._send(StreamEvents(events=events))
