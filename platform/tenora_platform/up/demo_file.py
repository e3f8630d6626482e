"""`demo.json`: where the demo is and how to log in. Mode 0600, replaced as a whole."""

import os
from pathlib import Path

import msgspec

PRIVATE_FILE = 0o600


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's login."""

    email: str
    password: str


class DemoTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant, its key, and the names of the adapters that it can call."""

    id: str
    name: str
    api_key: str
    adapters: list[str] = []


class DemoFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `demo.json`."""

    base_url: str
    base_model: str
    admin: Admin
    tenants: list[DemoTenant]

    def tenant(self, tenant_id: str) -> DemoTenant | None:
        """The tenant with this id, if it is in the file."""
        return next((tenant for tenant in self.tenants if tenant.id == tenant_id), None)


def read_demo_file(path: Path) -> DemoFile | None:
    """What the last start wrote; None if it wrote nothing, or something unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DemoFile)
    except (OSError, msgspec.DecodeError):
        return None


def write_demo_file(path: Path, demo: DemoFile) -> None:
    """Replaces the file atomically; a reader sees the old or the new one, and both are private."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - from a descriptor made private above
        file.write(msgspec.json.format(msgspec.json.encode(demo), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
