"""transformers and peft: static batches of whatever waits, adapters mixed by `adapter_names`."""

from pathlib import Path
from typing import Any

from peers.cells import BASE
from peers.environments import TORCH, Environment
from peers.server import Server, free_port
from peers.systems.base import Peer, Site

PACKAGES = (TORCH, "transformers==5.24.0", "peft==0.21.2")
SERVER = Path(__file__).parents[1] / "peft_server.py"


class PeftBatches(Peer):
    """`peft_server.py` in an environment of its own. It answers when a whole batch is done."""

    name = "peft"
    streams = False

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._environment = Environment(site.work / "peft")

    def install(self) -> None:
        """See `Environment.ensure`."""
        self._environment.ensure(PACKAGES, _build)

    def launch(self) -> Server:
        """One process; torch uses every core."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        adapters = [f"{name}={folder}" for name, folder in self.site.adapters.items()]
        argv = (
            str(self._environment.python), str(SERVER), "--model-dir", str(self.site.model_dir),
            "--port", str(port), "--dtype", self.dtype, "--threads", str(self.site.threads),
            "--max-batch", str(self.site.concurrency), "--base-name", BASE,
            "--adapters", *adapters,
        )  # fmt: skip
        return Server(argv, {"HF_HUB_OFFLINE": "1"}, self.site.log(self.name))

    async def facts(self) -> dict[str, Any]:
        """As it was started."""
        return {
            "dtype": self.dtype,
            "versions": self._environment.versions("peft", "transformers", "torch"),
            "settings": f"static batches of up to {self.site.concurrency}",
        }


def _build(environment: Environment) -> None:
    environment.create()
    environment.pip("install", *PACKAGES)
