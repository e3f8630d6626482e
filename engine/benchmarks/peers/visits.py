"""Visits every system in turn, and keeps what each cell gave."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from load import RequestFailedError

from peers.cells import Amount, Cell, alternate
from peers.load_cell import row, run_clients
from peers.server import ServerError
from peers.systems.base import System
from peers.trials import Trials

FAILURES = (ServerError, RequestFailedError, OSError, subprocess.CalledProcessError)
MACHINE = Path(__file__).with_name("machine.py")


class Visitor:
    """Rows by system, cell and visit; facts by system; the machine's rates by alternation.

    A system that fails is left out from then on, and `failures` says why: others go on.
    """

    def __init__(
        self, systems: Sequence[System], cells: Sequence[Cell], amount: Amount, threads: int
    ) -> None:
        self._systems = systems
        self._cells = cells
        self._amount = amount
        self._threads = threads
        self.rows: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.machine: list[dict[str, Any]] = []

    def install(self) -> None:
        """Everything that is not there yet."""
        for system in self._systems:
            try:
                system.install()
            except FAILURES as error:
                self._fail(system, error)

    async def choose(self, trials: Trials) -> None:
        """Let every system find the settings that are fastest for it."""
        for system in self._systems:
            if system.name not in self.failures:
                await trials.choose(system)

    async def run(self, alternations: int, save: Callable[[], None]) -> None:
        """All visits in their order; `save` after each. Afterwards no server is left."""
        try:
            for visit, system in alternate(self._systems, alternations):
                if system is self._systems[0]:
                    self.machine.append(measure_machine(self._threads))
                if system.name not in self.failures:
                    await self._visit(visit, system)
                    save()
        finally:
            for system in self._systems:
                await system.close()

    async def _visit(self, visit: int, system: System) -> None:
        started = time.monotonic()
        try:
            is_cold = await system.enter()
            if system.name not in self.facts:
                self.facts[system.name] = await system.facts()
            for cell in self._cells:
                if cell.traffic in system.traffic:
                    await self._measure(visit, system, cell, is_cold=is_cold)
            await system.leave()
        except FAILURES as error:
            self._fail(system, error)
            await system.close()
        print(f"{system.name}: visit {visit + 1} in {time.monotonic() - started:.0f} s", flush=True)

    async def _measure(self, visit: int, system: System, cell: Cell, *, is_cold: bool) -> None:
        warm_up = self._amount.warm_up(cell, visit, is_cold=is_cold)
        await run_clients(system.send, warm_up, cell.concurrency)
        bodies = self._amount.bodies(cell, visit)
        samples, wall_s = await run_clients(system.send, bodies, cell.concurrency)
        measured = row(samples, wall_s, cell.concurrency, streams=system.streams)
        self.rows.setdefault(system.name, {}).setdefault(cell.label, {})[visit] = measured
        print(f"  {system.name}: {cell.label}: {measured['output_tokens_per_s']} tok/s", flush=True)

    def _fail(self, system: System, error: Exception) -> None:
        self.failures[system.name] = f"{type(error).__name__}: {error}"
        print(f"{system.name} failed and is left out: {error}", flush=True)


def measure_machine(threads: int) -> dict[str, Any]:
    """See `machine.py`; a process of its own, while no server runs."""
    answer = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, MACHINE, str(threads)], check=True, capture_output=True, text=True
    )
    measured: dict[str, Any] = json.loads(answer.stdout)
    return measured
