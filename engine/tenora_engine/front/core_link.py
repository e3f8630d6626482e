"""The front's end of the PAIR socket to one life of the core."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import zmq

from tenora_engine.core.messages import FromCore, ToCore, from_core_decoder, to_core_encoder
from tenora_engine.protocol.loop_socket import LoopSocket

log = structlog.get_logger(__name__)

MessageHandler = Callable[[FromCore], None]
_MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux
_QUIET_S = 0.05


class CoreLink:
    """Binds a socket file of its own, so that nothing of an earlier life can arrive here.

    Messages are handed over as they come, from when it is made until `close`.
    """

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
        self._num_received = 0
        self._socket = LoopSocket(zmq.PAIR, self._on_frames)
        # The service bounds what is under way, so the queue itself needs no limit.
        self._socket.options.set(zmq.SNDHWM, 0)
        self._socket.options.set(zmq.RCVHWM, 0)
        self._socket.options.set(zmq.LINGER, 0)
        self._socket.bind(self.url)

    @property
    def url(self) -> str:
        """Where the core connects to."""
        return f"ipc://{self._path}"

    def send(self, message: ToCore) -> None:
        """Hand a message to the socket at once, in order; given up when no core is there."""
        with contextlib.suppress(zmq.ZMQError):  # a dead core is seen by its process
            self._socket.send(to_core_encoder.encode(message))

    async def drain(self) -> None:
        """Return when nothing more comes of what a core sent before it died."""
        seen = -1
        while seen != self._num_received:
            seen = self._num_received
            await asyncio.sleep(_QUIET_S)

    def close(self) -> None:
        """Release the socket and its file."""
        self._socket.close(linger_ms=0)
        self._path.unlink(missing_ok=True)

    def _on_frames(self, frames: list[bytes]) -> None:
        self._num_received += 1
        try:
            message = from_core_decoder.decode(frames[0])
        except msgspec.DecodeError as error:
            log.error("core_message_unreadable", error=str(error))  # noqa: TRY400 - no traceback
            return
        self._on_message(message)
