"""The data folder of one installation: its layout, its privacy, and the lock on it.

Unix sockets live under `run`, whose path must be short: the kernel takes at most 107 bytes for
a socket's path. Where the data folder's own path is too long, `run` is a private folder below
`$XDG_RUNTIME_DIR`, or else below `/tmp`, named after the user and a hash of the data folder.
"""

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tenora_platform.up.errors import DataFolderError

LOCK_NAME = "up.lock"
PRIVATE = 0o700
MAX_SOCKET_PATH_BYTES = 107
LONGEST_SOCKET_NAME = "postgres/.s.PGSQL.5432"
LEFTOVER_WAIT_S = 20.0


@dataclass(frozen=True)
class DataFolder:
    """Paths below the data folder. The folders exist, and only their owner may list them."""

    root: Path
    run: Path

    @property
    def logs(self) -> Path:
        """One log file per role; the one before is kept as `<role>.log.1`."""
        return self.root / "logs"

    @property
    def models(self) -> Path:
        """Converted model folders."""
        return self.root / "models"

    @property
    def objects(self) -> Path:
        """The object store: uploads and canonical adapter files."""
        return self.root / "objects"

    @property
    def postgres(self) -> Path:
        """The embedded PostgreSQL cluster."""
        return self.root / "postgres"

    @property
    def redis(self) -> Path:
        """The embedded Redis' append-only file."""
        return self.root / "redis"

    @property
    def engine(self) -> Path:
        """The engine replica's usage journal and adapter cache."""
        return self.root / "engine"

    @property
    def demo_file(self) -> Path:
        """Addresses, passwords and keys of the demo; the only place that keeps them readable."""
        return self.root / "demo.json"


def default_root(environ: Mapping[str, str]) -> Path:
    """`/var/lib/tenora` for root, whose home must stay closed; else the user's data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/tenora")
    data_home = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser() / "tenora"


def open_data_folder(root: Path, environ: Mapping[str, str]) -> DataFolder:
    """Creates what is missing and closes it to others. Safe to repeat.

    Raises `DataFolderError` where `root` holds files of something else.
    """
    root = root.expanduser().absolute()
    _require_ours(root)
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(PRIVATE)
    folder = DataFolder(root=root, run=_run_folder(root, environ))
    for path in (
        folder.logs, folder.models, folder.objects, folder.redis, folder.engine,
    ):  # fmt: skip
        path.mkdir(mode=PRIVATE, exist_ok=True)
    (root / LOCK_NAME).touch(mode=0o600)
    return folder


def lock_data_folder(folder: DataFolder) -> int:
    """Takes the lock and returns its file descriptor, which every child must inherit.

    As children hold the lock too, it outlives a killed `tenora up` exactly until its last child
    has ended, so two databases can never run on one folder.

    Raises `DataFolderError` while another `tenora up` uses the folder, or where what a killed one
    left behind does not end.
    """
    descriptor = os.open(folder.root / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + LEFTOVER_WAIT_S
    while not _try_lock(descriptor):
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        if _is_alive(owner):
            os.close(descriptor)
            raise DataFolderError(
                f"Another `tenora up` (process {owner}) uses {folder.root}: stop it, or choose "
                "another folder with --data and another port with --port."
            )
        if time.monotonic() > give_up_at:
            os.close(descriptor)
            raise DataFolderError(
                f"Processes of an earlier `tenora up` still use {folder.root}: end them (`fuser "
                f"{folder.root / LOCK_NAME}` names them), or choose another folder with --data."
            )
        time.sleep(0.1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def rotate_logs(folder: DataFolder) -> None:
    """Gives every role a new log and keeps the one before as `<role>.log.1`."""
    for log in folder.logs.glob("*.log"):
        log.replace(log.with_name(f"{log.name}.1"))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(pid_text: str) -> bool:
    if not pid_text.isdigit():
        return False
    try:
        os.kill(int(pid_text), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _require_ours(root: Path) -> None:
    if not root.exists():
        return
    if not root.is_dir():
        raise DataFolderError(f"{root} is not a folder: choose another with --data.")
    if not (root / LOCK_NAME).exists() and any(root.iterdir()):
        raise DataFolderError(
            f"{root} holds other files and is not a data folder of Tenora's: name an empty or new "
            "folder with --data."
        )


def _run_folder(root: Path, environ: Mapping[str, str]) -> Path:
    own = root / "run"
    if _fits_sockets(own):
        own.mkdir(mode=PRIVATE, exist_ok=True)
        return own
    name = f"tenora-{os.geteuid()}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"
    bases = [Path(environ["XDG_RUNTIME_DIR"])] if environ.get("XDG_RUNTIME_DIR") else []
    for base in (*bases, Path("/tmp")):  # noqa: S108 - the folder is private, and checked below
        path = base / name
        if base.is_dir() and os.access(base, os.W_OK) and _fits_sockets(path):
            _make_private(path)
            return path
    raise DataFolderError(f"The path {root} is too long for sockets: choose a shorter --data.")


def _fits_sockets(run: Path) -> bool:
    return len(os.fsencode(run / LONGEST_SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES


def _make_private(path: Path) -> None:
    """Creates `path` in a folder that others may write to, without falling for a planted one."""
    path.mkdir(mode=PRIVATE, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise DataFolderError(f"{path} belongs to someone else: remove it and start again.")
    path.chmod(PRIVATE)
