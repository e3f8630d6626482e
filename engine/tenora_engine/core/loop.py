"""The step loop: messages in, steps, one message out per step."""

import gc
import time

import zmq

from tenora_engine.config import EngineConfig
from tenora_engine.core.core import Core
from tenora_engine.core.factory import build_core
from tenora_engine.core.messages import (
    CoreFailed,
    FromCore,
    StepOutput,
    from_core_encoder,
    to_core_decoder,
)
from tenora_engine.protocol.errors import EngineError, ErrorPayload

HEARTBEAT_MS = 500
"""A core with nothing to say reports its counters this often."""
LOADING_POLL_MS = 5
"""How often a core that only waits for an adapter looks whether it has arrived."""


def run_core(config: EngineConfig, core_url: str) -> int:
    """Serve the front at `core_url` until it asks for shutdown. Returns the exit status."""
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(core_url)
    try:
        return _serve(config, socket)
    finally:
        socket.close(linger=1000)
        context.term()


def _serve(config: EngineConfig, socket: "zmq.Socket[bytes]") -> int:
    try:
        core, ready = build_core(config)
    except EngineError as error:
        socket.send(from_core_encoder.encode(CoreFailed(error=ErrorPayload.of(error))))
        return 1
    gc.collect()
    gc.freeze()  # weights and code live as long as the process; never scan them again
    socket.send(from_core_encoder.encode(ready))
    loop = StepLoop(core, socket)
    try:
        while not core.is_shutting_down:
            loop.turn()
    finally:
        core.close()
    return 0


class StepLoop:
    """Alternates between the socket and the core. `turn` waits only when nothing can run."""

    def __init__(self, core: Core, socket: "zmq.Socket[bytes]") -> None:
        self._core = core
        self._socket = socket
        self._last_sent = 0.0

    def turn(self) -> None:
        """Take in all messages, then run one step and publish it."""
        core = self._core
        if not core.has_work:
            self._socket.poll(HEARTBEAT_MS)
        elif core.waits_for_adapters:
            self._socket.poll(LOADING_POLL_MS)
        self._receive()
        if not core.has_work:
            self._publish(StepOutput(sequences=(), stats=core.stats()))
            return
        reply = core.advance_probe()
        if reply is not None:
            self._send(reply)
        self._publish(core.step())

    def _receive(self) -> None:
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply = self._core.handle(to_core_decoder.decode(data))
            if reply is not None:
                self._send(reply)

    def _publish(self, output: StepOutput) -> None:
        """Send a step that has outputs; an empty one only as a heartbeat."""
        now = time.monotonic()
        if output.sequences or now - self._last_sent >= HEARTBEAT_MS / 1e3:
            self._send(output)
            self._last_sent = now

    def _send(self, message: FromCore) -> None:
        self._socket.send(from_core_encoder.encode(message))
