"""The front's end of the PAIR socket to one life of the core."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import zmq
import zmq.asyncio

from tenora_engine.core.messages import FromCore, ToCore, from_core_decoder, to_core_encoder

log = structlog.get_logger(__name__)

MessageHandler = Callable[[FromCore], None]
_MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux


class CoreLink:
    """Binds a socket file of its own, so that nothing of an earlier life can arrive here."""

    def __init__(self, path: Path, on_message: MessageHandler) -> None:
        """Bind `path`.

        Raises:
            ValueError: the path is longer than a Unix socket's may be.
        """
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"The socket path {path} is longer than {_MAX_SOCKET_PATH_BYTES} bytes: "
                "choose a shorter run folder."
            )
        self._path = path
        self._on_message = on_message
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        # The service bounds what is under way, so the queue itself needs no limit.
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(self.url)

    @property
    def url(self) -> str:
        """Where the core connects to."""
        return f"ipc://{self._path}"

    def send(self, message: ToCore) -> None:
        """Hand a message to the socket at once, in order; given up when no core is there."""
        sent = self._socket.send(to_core_encoder.encode(message), flags=zmq.DONTWAIT)
        asyncio.ensure_future(sent).add_done_callback(_ignore_outcome)

    async def receive(self) -> None:
        """Hand over messages as they come, for ever."""
        while True:
            self._handle(await self._socket.recv())

    async def drain(self) -> None:
        """Hand over what a core sent before it died."""
        while await self._socket.poll(timeout=50):
            self._handle(await self._socket.recv())

    def close(self) -> None:
        """Release the socket and its file."""
        self._socket.close(linger=0)
        self._path.unlink(missing_ok=True)

    def _handle(self, frame: bytes) -> None:
        try:
            message = from_core_decoder.decode(frame)
        except msgspec.DecodeError as error:
            log.error("core_message_unreadable", error=str(error))  # noqa: TRY400 - no traceback
            return
        self._on_message(message)


def _ignore_outcome(sent: "asyncio.Future[Any]") -> None:
    """The supervisor sees a dead core by its process, not by its socket."""
    if not sent.cancelled():
        sent.exception()
