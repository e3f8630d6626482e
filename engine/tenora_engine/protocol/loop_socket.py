"""A ZeroMQ socket on an event loop: a call for each message that comes, no future for any.

pyzmq's own asyncio sockets make a future for every message in either direction and ask the socket
for its state before and after: 150 microseconds for what the socket does in ten.
"""

import asyncio
from collections.abc import Callable

import zmq

_MESSAGES_A_TURN = 64

FramesHandler = Callable[[list[bytes]], None]


class LoopSocket:
    """Belongs to the running event loop. `on_frames` is called with each message, in order.

    What `on_frames` raises goes to the loop's exception handler, and reading goes on. Set options
    on `options` before `bind` or `connect`.
    """

    def __init__(self, kind: int, on_frames: FramesHandler) -> None:
        self.options: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._read_is_due = False
        self._fd = -1

    def bind(self, url: str) -> None:
        """Serve at `url`. Raises zmq.ZMQError."""
        self.options.bind(url)
        self._start()

    def connect(self, url: str) -> None:
        """Connect to `url`, now or when it is there. Raises zmq.ZMQError."""
        self.options.connect(url)
        self._start()

    def send(self, *frames: bytes) -> None:
        """Hand a message over at once, in order.

        Raises:
            zmq.ZMQError: it takes nothing now (`zmq.Again`), cannot be routed, or is closed.
        """
        try:
            self.options.send_multipart(frames, flags=zmq.DONTWAIT)
        finally:
            # Sending handles events of the socket, and its descriptor reports each only once.
            self._read_soon()

    def stop_reading(self) -> None:
        """Leave what comes from now on unread. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1

    def close(self, linger_ms: int) -> None:
        """Stop reading; `linger_ms` is how long what was sent may still leave. Idempotent."""
        self.stop_reading()
        self.options.close(linger=linger_ms)

    def _start(self) -> None:
        if self._fd < 0:
            self._fd = int(self.options.get(zmq.FD))
            self._loop.add_reader(self._fd, self._read)
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._read_is_due:
            self._read_is_due = True
            self._loop.call_soon(self._read_due)

    def _read_due(self) -> None:
        self._read_is_due = False
        self._read()

    def _read(self) -> None:
        """Hand over what has come, but no more than a turn's worth."""
        for _ in range(_MESSAGES_A_TURN):
            if self._fd < 0:
                return  # the message before said to stop
            try:
                frames = self.options.recv_multipart(flags=zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self._on_frames(frames)
            except Exception as error:  # noqa: BLE001 - the next message is not to blame
                self._loop.call_exception_handler(
                    {"message": "a message was not handled", "exception": error}
                )
        self._read_soon()
