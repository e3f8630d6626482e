"""How each role of an installation is started: its command line and environment."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tenora_platform.up.folder import DataFolder
from tenora_platform.up.process import ProcessSpec

# -P keeps the folder the user stands in from shadowing packages.
PYTHON = (sys.executable, "-P", "-m")
PLATFORM = (*PYTHON, "tenora_platform")
ENGINE = (*PYTHON, "tenora_engine")
CONVERTER = (*PYTHON, "tenora_engine.demo")

STOP_ORDER = ("api", "engine", "worker", "redis", "postgres")


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Every address that the roles of one machine share."""

    folder: DataFolder
    host: str
    port: int
    database_url: str
    redis_url: str
    environ: Mapping[str, str]
    """What `tenora up` itself was started with; the children inherit it."""

    @property
    def base_url(self) -> str:
        """Where clients on this machine reach the API."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - compared
        return f"http://{host}:{self.port}"

    @property
    def engine_url(self) -> str:
        """ZeroMQ address of the engine's front."""
        return f"ipc://{self.folder.run / 'engine.sock'}"

    @property
    def object_store_url(self) -> str:
        """Where uploads and canonical adapter files are kept."""
        return self.environ.get("TENORA_OBJECT_STORE_URL") or self.folder.objects.as_uri()

    def role_environ(self) -> dict[str, str]:
        """The environment of `tenora api`, `worker` and `migrate`."""
        return {
            **self.environ,
            "PYTHONUNBUFFERED": "1",
            "TENORA_DATABASE_URL": self.database_url,
            "TENORA_REDIS_URL": self.redis_url,
            "TENORA_ENGINE_URL": self.engine_url,
            "TENORA_OBJECT_STORE_URL": self.object_store_url,
            "TENORA_HOST": self.host,
            "TENORA_PORT": str(self.port),
        }

    def platform(self, role: str) -> ProcessSpec:
        """`tenora <role>` of the platform."""
        return self._spec(role, (*PLATFORM, role))

    def engine(self, model_dir: Path, base_model: str) -> ProcessSpec:
        """The engine replica; its front starts the core."""
        arguments = (
            "--model-dir", str(model_dir), "--base-model", base_model,
            "--listen-url", self.engine_url, "--run-dir", str(self.folder.run),
            "--state-dir", str(self.folder.engine), "--object-store-url", self.object_store_url,
        )  # fmt: skip
        return self._spec("engine", (*ENGINE, *arguments))

    def converter(self, target: Path) -> ProcessSpec:
        """The step that makes the demo base model, or finds it complete."""
        return self._spec("demo-model", (*CONVERTER, str(target)))

    def _spec(self, name: str, argv: tuple[str, ...]) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=argv,
            environ=self.role_environ(),
            log_path=self.folder.logs / f"{name}.log",
        )
