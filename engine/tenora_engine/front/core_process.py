"""Keeps one core process alive: starts it, hears of its death at once, starts it again."""

import asyncio
import contextlib
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from tenora_engine.config import EngineConfig, encode_config
from tenora_engine.core.messages import CoreFailed, CoreReady, FromCore, Shutdown, ToCore
from tenora_engine.front.core_link import CoreLink, MessageHandler

log = structlog.get_logger(__name__)

LossHandler = Callable[[str], None]

CORE_COMMAND = (sys.executable, "-m", "tenora_engine.core")
FIRST_RESTART_DELAY_S = 0.5
LONGEST_RESTART_DELAY_S = 30.0
STABLE_AFTER_S = 60.0
"""A core that was ready for that long starts again without a growing delay."""
SHUTDOWN_GRACE_S = 5.0


class Core(Protocol):
    """What the front needs of a core, wherever it runs."""

    async def start(self, on_message: MessageHandler, on_lost: LossHandler) -> None:
        """Begin; `on_lost` is called with a reason each time a core is gone."""
        ...

    def send(self, message: ToCore) -> None:
        """Pass a message on; given up when there is no core."""
        ...

    def kill(self) -> None:
        """End a core that makes no progress; `on_lost` follows."""
        ...

    async def stop(self) -> None:
        """Shut the core down for good. `on_lost` is not called. Idempotent."""
        ...


class CoreProcess:
    """The real core as a child process, told its settings as JSON on standard input.

    Its only argument is the address of a socket that is new in each life.
    """

    def __init__(self, config: EngineConfig, command: Sequence[str] = CORE_COMMAND) -> None:
        self._config = config
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | None = None
        self._link: CoreLink | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._ready_at: float | None = None
        self._failure: str | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running core."""
        return self._process.pid if self._process is not None else None

    async def start(self, on_message: MessageHandler, on_lost: LossHandler) -> None:
        """See `Core.start`."""
        for left_behind in self._config.run_dir.glob("core-*.sock"):
            left_behind.unlink(missing_ok=True)
        self._supervisor = asyncio.create_task(
            self._supervise(on_message, on_lost), name="core-supervisor"
        )

    def send(self, message: ToCore) -> None:
        """See `Core.send`."""
        if self._link is not None:
            self._link.send(message)

    def kill(self) -> None:
        """See `Core.kill`."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """See `Core.stop`."""
        if self._supervisor is None:
            return
        self._is_stopping = True
        self.send(Shutdown())
        if self._process is None:
            self._supervisor.cancel()  # between two lives
        done, _ = await asyncio.wait([self._supervisor], timeout=SHUTDOWN_GRACE_S)
        if not done:
            self.kill()
            await asyncio.wait([self._supervisor])

    async def _supervise(self, on_message: MessageHandler, on_lost: LossHandler) -> None:
        delay_s = FIRST_RESTART_DELAY_S
        for life in itertools.count(1):
            self._ready_at, self._failure = None, None
            try:
                reason = await self._live(life, on_message)
            except (OSError, ValueError) as error:
                reason = f"the core cannot be started: {error}"
            if self._is_stopping:
                return
            log.error("core_lost", life=life, reason=reason)
            on_lost(reason)
            if self._was_stable():
                delay_s = FIRST_RESTART_DELAY_S
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_RESTART_DELAY_S)

    async def _live(self, life: int, on_message: MessageHandler) -> str:
        """One life of the core, from start to death; the reason it ended."""

        def observe(message: FromCore) -> None:
            if isinstance(message, CoreReady):
                self._ready_at = time.monotonic()
            elif isinstance(message, CoreFailed):
                self._failure = message.error.message
            on_message(message)

        link = CoreLink(self._config.run_dir / f"core-{secrets.token_hex(4)}.sock", observe)
        try:
            code = await self._run_process(life, link)
        finally:
            link.close()
        return self._failure or f"the core process ended with status {code}"

    async def _run_process(self, life: int, link: CoreLink) -> int:
        """Start the process, let `link` hear all that it says, and return its exit status."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, link.url, stdin=asyncio.subprocess.PIPE
            )
            self._link, self._process = link, process
            log.info("core_started", life=life, pid=process.pid)
            with contextlib.suppress(ConnectionError):
                await process.communicate(encode_config(self._config))
            return await process.wait()
        finally:
            self._link = self._process = None
            await link.drain()

    def _was_stable(self) -> bool:
        return self._ready_at is not None and time.monotonic() - self._ready_at > STABLE_AFTER_S
