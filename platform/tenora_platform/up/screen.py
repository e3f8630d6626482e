"""What `tenora up` shows: a line per step with its progress, then one short screen.

On a terminal the steps are live progress bars; into a file or pipe they are plain lines.
"""

import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tenora_platform.up.demo_file import DemoFile

REFRESH_INTERVAL_S = 0.1


class Step:
    """One step in progress."""

    def __init__(self, screen: "Screen", title: str) -> None:
        self._screen = screen
        self._title = title
        self._detail = ""
        self._started_at = time.monotonic()
        self._bar = screen.progress.add_task(title, total=None, detail="")

    def update(self, detail: str, fraction: float | None = None) -> None:
        """Shows what happens now, and the share that is done (0 to 1) where it is known."""
        total = None if fraction is None else 1.0
        self._screen.progress.update(self._bar, detail=detail, total=total, completed=fraction or 0)
        if detail != self._detail:
            self._detail = detail
            self._screen.plain(f"  {self._title}: {detail}")

    def finish(self, *, succeeded: bool) -> None:
        """Turns the line into its final form."""
        outcome = "done" if succeeded else "failed"
        self._screen.progress.update(self._bar, detail=outcome, total=1.0, completed=1.0)
        elapsed_s = time.monotonic() - self._started_at
        self._screen.plain(f"{self._title}: {outcome} after {elapsed_s:.1f} s")


class Screen:
    """Everything goes through one console, so that notes never tear a progress bar.

    It never starts a thread: children are forked from this process.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}", style="dim"),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
        )

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Draws the steps until the block ends."""
        if not self._console.is_terminal:
            yield
            return
        self.progress.start()
        painter = asyncio.create_task(self._paint())
        try:
            yield
        finally:
            painter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await painter
            self.progress.stop()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """A step that lasts as long as the block, and fails with it."""
        step = Step(self, title)
        try:
            yield step
        except BaseException:
            step.finish(succeeded=False)
            raise
        step.finish(succeeded=True)

    def plain(self, line: str) -> None:
        """A line for readers without progress bars."""
        if not self._console.is_terminal:
            self.note(line)

    def note(self, line: str = "") -> None:
        """A line that stays. Never wrapped, so that keys and commands can be copied."""
        self._console.print(line, markup=False, soft_wrap=True)

    def summary(self, base_url: str, base_model: str, data: Path, demo: DemoFile | None) -> None:
        """The last screen: where it is, who may call what, and a line to paste."""
        self.note()
        self.note("Tenora is up.")
        self.note(f"  API         {base_url}")
        self.note(f"  base model  {base_model}")
        self.note(f"  data        {data}")
        if demo is not None:
            self.note()
            for tenant in demo.tenants:
                adapters = ", ".join(tenant.adapters) or "no adapters"
                self.note(f"  {tenant.name:<8} {tenant.api_key}  {adapters}")
            self.note()
            self.note("Try it:")
            self.note()
            self.note(curl_line(demo))
        self.note()
        self.note("Ctrl-C stops everything and keeps the data.")

    async def _paint(self) -> None:
        while True:
            self.progress.refresh()
            await asyncio.sleep(REFRESH_INTERVAL_S)


def curl_line(demo: DemoFile) -> str:
    """A chat completion with the first tenant's first adapter, as one line for any shell."""
    tenant = demo.tenants[0]
    body = {
        "model": tenant.adapters[0] if tenant.adapters else demo.base_model,
        "messages": [{"role": "user", "content": "My parcel 4411 has not arrived. I am worried."}],
        "max_tokens": 64,
    }
    words = (
        "curl", f"{demo.base_url}/v1/chat/completions",
        "-H", f"Authorization: Bearer {tenant.api_key}",
        "-H", "Content-Type: application/json",
        "-d", json.dumps(body),
    )  # fmt: skip
    return shlex.join(words)
