"""The unprivileged account that the embedded PostgreSQL runs as when `tenora up` is root.

PostgreSQL refuses to run as root. Its account gets the two folders that it works in by open file
descriptors, so no folder above them has to be opened to anybody: root's home stays closed.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tenora_platform.up.errors import UpError

ACCOUNT_NAME = "tenora-postgres"


@dataclass(frozen=True)
class Account:
    """A system account, by number."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Makes `path`, a folder, the account's own and private."""
        os.chown(path, self.uid, self.gid)
        path.chmod(0o700)

    def may_pass(self, path: Path) -> bool:
        """Whether the account can reach what lies in the folder `path`."""
        return all(self._passes(folder) for folder in (path.resolve(), *path.resolve().parents))

    def _passes(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)


def service_account() -> Account | None:
    """The account to run PostgreSQL as, created if missing; None where we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        _create()
        entry = pwd.getpwnam(ACCOUNT_NAME)
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def _create() -> None:
    command = (
        "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
        "--shell", "/usr/sbin/nologin", ACCOUNT_NAME,
    )  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - fixed words
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise UpError(
            f"PostgreSQL does not run as root, and the account {ACCOUNT_NAME} cannot be made "
            f"({str(reason).strip()}): create it, start as another user, or set "
            "TENORA_DATABASE_URL to a server of yours."
        ) from error
