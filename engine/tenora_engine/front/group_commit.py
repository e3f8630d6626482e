"""A SQLite file owned by one thread that commits whatever has gathered as one transaction.

The event loop never waits for the disk, and many operations share one sync.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tenora_engine.protocol.errors import EngineUnavailableError

ResultT = TypeVar("ResultT")
Operation = Callable[[sqlite3.Connection], ResultT]
Setup = Callable[[sqlite3.Connection], None]
_Queued = tuple[Operation[Any], bool, "asyncio.Future[Any]"]
_Outcome = tuple["asyncio.Future[Any]", Any]


class GroupCommitter:
    """Belongs to one event loop. Writes are applied in the order they were asked.

    A group is durable as a whole (`synchronous=FULL`) before any of its futures is done; if its
    commit fails, all of them raise `EngineUnavailableError`. Reads see committed data only.
    """

    def __init__(self, path: Path, *, setup: Setup) -> None:
        """`setup` runs on the thread once, in a transaction of its own."""
        self._path = path
        self._setup = setup
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_writable = True
        """Whether the last commit succeeded."""

    async def open(self) -> None:
        """Open the file and run `setup`.

        Raises:
            EngineUnavailableError: the file cannot be opened or written.
        """
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, opened), name="group-commit", daemon=True
        )
        self._thread.start()
        await opened

    def write(self, operation: Operation[ResultT]) -> "asyncio.Future[ResultT]":
        """Run in the next group; the result comes once the group is durable."""
        return self._enqueue(operation, is_read=False)

    def read(self, operation: Operation[ResultT]) -> "asyncio.Future[ResultT]":
        """Run after the next group."""
        return self._enqueue(operation, is_read=True)

    async def close(self) -> None:
        """Commit what was asked so far and close the file. Idempotent."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._queue.put(None)
            await asyncio.to_thread(thread.join)

    def _enqueue(
        self, operation: Operation[ResultT], *, is_read: bool
    ) -> "asyncio.Future[ResultT]":
        if self._loop is None or self._thread is None:
            raise EngineUnavailableError("The usage journal is closed.", code="journal_unavailable")
        done: asyncio.Future[ResultT] = self._loop.create_future()
        self._queue.put((operation, is_read, done))
        return done

    def _settle(self, outcomes: list[_Outcome], is_writable: bool | None) -> None:
        if is_writable is not None:
            self.is_writable = is_writable
        for done, outcome in outcomes:
            if done.cancelled():
                continue
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

    # On the thread

    def _run(self, loop: asyncio.AbstractEventLoop, opened: "asyncio.Future[None]") -> None:
        try:
            connection = self._connect()
        except sqlite3.Error as error:
            loop.call_soon_threadsafe(opened.set_exception, _unavailable(error))
            return
        loop.call_soon_threadsafe(opened.set_result, None)
        is_open = True
        while is_open:
            group, is_open = self._take_group()
            writes = [(operation, done) for operation, is_read, done in group if not is_read]
            if writes:
                loop.call_soon_threadsafe(self._settle, *_commit(connection, writes))
            reads = [(operation, done) for operation, is_read, done in group if is_read]
            if reads:
                outcomes = [(done, _attempt(connection, operation)) for operation, done in reads]
                loop.call_soon_threadsafe(self._settle, outcomes, None)
        connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("begin immediate")
        self._setup(connection)
        connection.execute("commit")
        return connection

    def _take_group(self) -> tuple[list[_Queued], bool]:
        """Wait for one operation, then take all that are there; False once closing."""
        group: list[_Queued] = []
        item = self._queue.get()
        while item is not None:
            group.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, True
        return group, False


def _commit(
    connection: sqlite3.Connection, writes: list[tuple[Operation[Any], "asyncio.Future[Any]"]]
) -> tuple[list[_Outcome], bool]:
    """Run a group as one transaction: all of it is durable, or none."""
    try:
        connection.execute("begin immediate")
        outcomes = [(done, operation(connection)) for operation, done in writes]
        connection.execute("commit")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("rollback")
        return [(done, _unavailable(error)) for _, done in writes], False
    return outcomes, True


def _attempt(connection: sqlite3.Connection, read: Operation[Any]) -> Any:
    try:
        return read(connection)
    except sqlite3.Error as error:
        return _unavailable(error)


def _unavailable(error: sqlite3.Error) -> EngineUnavailableError:
    unavailable = EngineUnavailableError(
        "The engine cannot write its usage journal; check the disk of its state folder.",
        code="journal_unavailable",
    )
    unavailable.__cause__ = error
    return unavailable
