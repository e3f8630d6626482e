"""What the run asks of a system, and what systems that speak HTTP share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from load import Sample, stream_completion

from peers.cells import ADAPTERS, BASE, Traffic
from peers.server import Server, answers

START_TIMEOUT_S = 900.0
MAX_CONTEXT_TOKENS = 2048
ALL_TRAFFIC: tuple[Traffic, ...] = ("base", "one adapter", "mixed adapters")

Choice = Mapping[str, str]
"""Settings by name, of which `dtype` is always one, that may be faster or slower than others."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where everything is, and what it may use."""

    work: Path
    model_dir: Path
    adapters: Mapping[str, Path]
    threads: int
    concurrency: int
    """The largest that will be asked for."""

    def log(self, name: str) -> Path:
        """Where a server's output goes."""
        return self.work / "logs" / f"{name}.log"


class System(Protocol):
    """Installed once, entered and left once per alternation, closed at the end."""

    name: str
    traffic: Sequence[Traffic]
    """What it can serve."""
    choices: Sequence[Choice]
    """What `trials.py` tries; none where only defaults are measured."""
    choice: Choice
    """What the next start uses."""
    streams: bool
    """Whether tokens arrive as they are made, so that TTFT and TPOT mean something."""

    def install(self) -> None:
        """Put on disk what is missing."""
        ...

    async def enter(self) -> bool:
        """Return when it serves: True if it was started just now, and so is cold."""
        ...

    async def leave(self) -> None:
        """Return when it uses no core."""
        ...

    async def close(self) -> None:
        """End all its processes."""
        ...

    async def send(self, body: dict[str, Any]) -> Sample:
        """One completion; `body` is as `random_bodies` makes it, `model` one of `cells`' names."""
        ...

    async def facts(self) -> dict[str, Any]:
        """Dtype, versions and settings, for the report. Called while it serves."""
        ...


class Peer:
    """A server with OpenAI's `/v1/completions` that is frozen between visits."""

    name: str
    traffic: Sequence[Traffic] = ALL_TRAFFIC
    choices: Sequence[Choice] = ({"dtype": "float32"}, {"dtype": "bfloat16"})
    streams = True

    def __init__(self, site: Site) -> None:
        self.site = site
        self.choice = self.choices[0]
        self.url = ""
        self._server: Server | None = None

    @property
    def dtype(self) -> str:
        """The dtype that is served."""
        return self.choice["dtype"]

    def launch(self) -> Server:
        """Start the server and set `url`."""
        raise NotImplementedError

    async def enter(self) -> bool:
        """Start it, or let it go on."""
        is_cold = self._server is None
        if self._server is None:
            self._server = self.launch()
        else:
            self._server.thaw()
        await self._server.wait_until(lambda: answers(f"{self.url}/health"), START_TIMEOUT_S)
        return is_cold

    async def leave(self) -> None:
        """Freeze it."""
        if self._server is not None:
            self._server.freeze()

    async def close(self) -> None:
        """End it."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body in this server's words."""
        return body

    async def send(self, body: dict[str, Any]) -> Sample:
        """See `System.send`."""
        return await stream_completion(self.url, "none", self.request(body))


def adapter_index(body: dict[str, Any]) -> int | None:
    """Which of `ADAPTERS` a body names; None for the base model."""
    return None if body["model"] == BASE else ADAPTERS.index(body["model"])
