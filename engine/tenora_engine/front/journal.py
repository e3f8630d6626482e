"""The usage journal: what every request used, durable before its last byte leaves.

`running` holds a row per request under way, written as if the replica were already lost: when a
replica dies, its next life only has to move those rows. `records` holds ended requests until the
worker acknowledges them; `seq` is given at the end and never reused.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from tenora_engine.front.group_commit import GroupCommitter
from tenora_engine.protocol.messages import UsageBatch, UsageRecord

REPLICA_LOST = "replica_lost"

_SCHEMA = """
create table if not exists running (
    request_id text primary key,
    record blob not null
) without rowid;
create table if not exists records (
    seq integer primary key autoincrement,
    request_id text not null unique,
    record blob not null
);
"""
_INSERT_RECORD = "insert or ignore into records (request_id, record) values (?, ?)"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UsageRecord)


class UsageJournal:
    """Belongs to one event loop. Operations take effect in the order they were called."""

    def __init__(self, path: Path, *, replica_id: str, now_ms: Callable[[], int]) -> None:
        self._replica_id = replica_id
        self._now_ms = now_ms
        self._file = GroupCommitter(path, setup=self._set_up)
        self.backlog = 0
        """Ended requests that are not yet acknowledged."""

    @property
    def is_writable(self) -> bool:
        """Whether the last write became durable."""
        return self._file.is_writable

    async def open(self) -> None:
        """Open the file, and end what an earlier life of this replica left running.

        Raises:
            EngineUnavailableError: the file cannot be opened or written.
        """
        await self._file.open()
        self.backlog = await self._file.read(_count_records)

    def begin(self, record: UsageRecord) -> "asyncio.Future[bool]":
        """Note a request as running, by the record it gets if the replica is lost.

        The future is done when the note is durable; it is False when the id was used before.
        """
        key, data = record.request_id, _encoder.encode(record)

        def insert(connection: sqlite3.Connection) -> bool:
            used = connection.execute("select 1 from records where request_id = ?", (key,))
            if used.fetchone():
                return False
            note = connection.execute("insert or ignore into running values (?, ?)", (key, data))
            return note.rowcount == 1

        return self._file.write(insert)

    def checkpoint(self, record: UsageRecord) -> None:
        """Bring the note of a running request up to date, some time soon."""
        key, data = record.request_id, _encoder.encode(record)

        def update(connection: sqlite3.Connection) -> None:
            connection.execute("update running set record = ? where request_id = ?", (data, key))

        self._file.write(update).add_done_callback(_ignore_failure)

    def finish(self, record: UsageRecord) -> "asyncio.Future[int]":
        """End a running request. The future is done when its record is durable."""
        key, data = record.request_id, _encoder.encode(record)

        def move(connection: sqlite3.Connection) -> int:
            connection.execute("delete from running where request_id = ?", (key,))
            return connection.execute(_INSERT_RECORD, (key, data)).rowcount

        done = self._file.write(move)
        done.add_done_callback(self._count_in)
        return done

    async def pull(self, *, limit: int) -> UsageBatch:
        """The oldest unacknowledged records, at most `limit`, by ascending `seq`."""

        def select(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
            query = "select seq, record from records order by seq limit ?"
            return connection.execute(query, (max(0, limit),)).fetchall()

        rows = await self._file.read(select)
        records = (msgspec.structs.replace(_decoder.decode(data), seq=seq) for seq, data in rows)
        return UsageBatch(replica_id=self._replica_id, records=tuple(records))

    async def acknowledge(self, *, up_to_seq: int) -> None:
        """Forget records up to and including `up_to_seq`. Idempotent."""

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute("delete from records where seq <= ?", (up_to_seq,)).rowcount

        self.backlog -= await self._file.write(delete)

    async def check_writable(self) -> None:
        """Try a small write, to find out whether a disk that failed has recovered."""

        def touch(connection: sqlite3.Connection) -> None:
            connection.execute("pragma user_version = 1")

        await asyncio.wait([self._file.write(touch)])

    async def close(self) -> None:
        """Commit what was asked so far and close the file. Idempotent."""
        await self._file.close()

    def _set_up(self, connection: sqlite3.Connection) -> None:
        """Make the tables; give each request of an earlier life the record made for this case."""
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        rows = connection.execute("select request_id, record from running").fetchall()
        for request_id, data in rows:
            lost = msgspec.structs.replace(_decoder.decode(data), completed_at_ms=self._now_ms())
            connection.execute(_INSERT_RECORD, (request_id, _encoder.encode(lost)))
        connection.execute("delete from running")

    def _count_in(self, finished: "asyncio.Future[int]") -> None:
        if not finished.cancelled() and finished.exception() is None:
            self.backlog += finished.result()


def _count_records(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("select count(*) from records").fetchone()[0]
    return count


def _ignore_failure(done: "asyncio.Future[None]") -> None:
    """A lost checkpoint is made up for by the next one; `is_writable` tells of the fault."""
    if not done.cancelled():
        done.exception()
