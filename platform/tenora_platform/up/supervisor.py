"""Keeps child processes running, and ends them in the reverse order of their start.

A child that ends by itself is started again after a pause that doubles with each early end, from
half a second to half a minute. Until a child was ready once, three ends in a row are a failure.
"""

import asyncio
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable

from tenora_platform.up.errors import StartError
from tenora_platform.up.process import ProcessSpec, end, kill_group, run_to_end, spawn

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_AFTER_S = 60.0
ENDS_BEFORE_FAILURE = 3
PROBE_INTERVAL_S = 0.05

Probe = Callable[[], Awaitable[bool]]
Note = Callable[[str], None]


class Child:
    """One supervised process: running, or waiting to be started again, until it is stopped."""

    def __init__(self, spec: ProcessSpec, lock: int | None, note: Note) -> None:
        self.spec = spec
        self.early_ends = 0
        self.problem: str | None = None
        self._lock = lock
        self._note = note
        self._process: Process | None = None
        self._was_ready = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The running process, or None between two starts."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begins to keep the process running."""
        self._keeper = asyncio.create_task(self._keep_running(), name=f"keep {self.spec.name}")

    def mark_ready(self) -> None:
        """From now on an end is repaired with patience instead of being a failed start."""
        self._was_ready = True

    async def stop(self) -> None:
        """Guarantees that the process is gone and stays so."""
        if self._keeper is None:
            return
        self._keeper.cancel()
        await asyncio.wait((self._keeper,))

    async def _keep_running(self) -> None:
        while not self._has_failed():
            started_at = time.monotonic()
            status = await self._run_once()
            if time.monotonic() - started_at >= STEADY_AFTER_S:
                self.early_ends = 0
            self.early_ends += 1
            self.problem = f"{self.spec.name} ended ({_describe(status)})"
            if self._has_failed():
                return
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self.early_ends - 1))
            self._note(
                f"{self.problem}; starting it again in {pause:g} s. See {self.spec.log_path}"
            )
            await asyncio.sleep(pause)

    async def _run_once(self) -> int:
        process = await spawn(self.spec, lock=self._lock)
        self._process = process
        try:
            return await process.wait()
        except asyncio.CancelledError:
            await end(process, self.spec)
            raise
        finally:
            kill_group(process.pid)
            self._process = None

    def _has_failed(self) -> bool:
        return not self._was_ready and self.early_ends >= ENDS_BEFORE_FAILURE

    def failure(self) -> StartError | None:
        """The reason why the child will not be started again, if that is so."""
        if self._keeper is None or not self._keeper.done():
            return None
        if not self._keeper.cancelled() and (error := self._keeper.exception()) is not None:
            return StartError(f"{self.spec.name} cannot be started: {error}")
        sentence = f"{self.problem or self.spec.name}, {self.early_ends} times in a row."
        return StartError.with_log(sentence, self.spec.log_path)


class Supervisor:
    """All children of one `tenora up`. Use from one event loop in the main thread."""

    def __init__(self, *, lock: int | None, note: Note) -> None:
        self._lock = lock
        self._note = note
        self._children: list[Child] = []

    def start(self, spec: ProcessSpec) -> Child:
        """Starts `spec` and keeps it running until `stop_all`."""
        child = Child(spec, self._lock, self._note)
        self._children.append(child)
        child.start()
        return child

    async def until_ready(self, child: Child, probe: Probe, *, timeout_s: float) -> None:
        """Waits until `probe` says yes.

        Raises `StartError` when the child keeps ending, or after `timeout_s`.
        """
        give_up_at = time.monotonic() + timeout_s
        while not await probe():
            for any_child in self._children:
                if (failure := any_child.failure()) is not None:
                    raise failure
            if time.monotonic() > give_up_at:
                sentence = f"{child.spec.name} was not ready within {timeout_s:g} s."
                raise StartError.with_log(sentence, child.spec.log_path)
            await asyncio.sleep(PROBE_INTERVAL_S)
        child.mark_ready()

    def mark_all_ready(self) -> None:
        """Everything has come up: from now on, whatever ends is started again for ever."""
        for child in self._children:
            child.mark_ready()

    async def run(self, spec: ProcessSpec, on_line: Note | None = None) -> None:
        """Runs a step that ends by itself. Raises `StartError` unless it succeeds."""
        status = await run_to_end(spec, lock=self._lock, on_line=on_line)
        if status != 0:
            sentence = f"{spec.name} failed ({_describe(status)})."
            raise StartError.with_log(sentence, spec.log_path)

    async def stop_all(self, order: tuple[str, ...] = ()) -> None:
        """Stops the children named in `order`, then the others, the last started first."""
        rank = {name: position for position, name in enumerate(order)}
        last_first = list(reversed(self._children))
        for child in sorted(last_first, key=lambda child: rank.get(child.spec.name, len(order))):
            await child.stop()
            self._children.remove(child)


def _describe(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
