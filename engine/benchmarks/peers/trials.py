"""Gives each peer the settings that are fastest for it on this machine, found by trying them.

A trial is one wave of short requests for the base model at the largest concurrency, after a
warm-up, in a server started for it. What was found is kept in a file, so it is done once.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.cells import Amount, Cell
from peers.load_cell import run_clients
from peers.systems.base import Choice, System

OUTPUT_TOKENS = 16


class Trials:
    """The trials of this machine, by system; `path` keeps them."""

    def __init__(self, path: Path, cell: Cell, prompt_tokens: int) -> None:
        self._path = path
        self._cell = cell
        self._amount = Amount(prompt_tokens, OUTPUT_TOKENS, rounds=1)
        self.found: dict[str, list[dict[str, Any]]] = {}
        if path.is_file():
            self.found = json.loads(path.read_text())

    async def choose(self, system: System) -> None:
        """Set the fastest of the system's choices, after trying those that were never tried."""
        if len(system.choices) < 2:
            return
        tried = self.found.setdefault(system.name, [])
        for choice in untried(system.choices, tried):
            tried.append({"choice": choice} | await self._try(system, choice))
            self._path.write_text(json.dumps(self.found, indent=2) + "\n")
        system.choice = fastest(tried)

    async def _try(self, system: System, choice: Choice) -> dict[str, Any]:
        system.choice = choice
        try:
            await system.enter()
            warm_up = self._amount.warm_up(self._cell, len(self.found), is_cold=True)
            await run_clients(system.send, warm_up, self._cell.concurrency)
            bodies = self._amount.bodies(self._cell, visit=2_000 + len(self.found))
            samples, wall_s = await run_clients(system.send, bodies, self._cell.concurrency)
        except Exception as error:  # noqa: BLE001 - a choice that does not run is not the fastest
            found: dict[str, Any] = {"output_tokens_per_s": 0.0, "error": repr(error)}
        else:
            tokens = sum(sample.completion_tokens for sample in samples)
            found = {"output_tokens_per_s": round(tokens / wall_s, 1)}
        finally:
            await system.close()
        print(f"  {system.name}: trial of {choice}: {found}", flush=True)
        return found


def untried(choices: Sequence[Choice], tried: Sequence[dict[str, Any]]) -> list[Choice]:
    """What no trial has been made of."""
    return [choice for choice in choices if all(choice != one["choice"] for one in tried)]


def fastest(tried: Sequence[dict[str, Any]]) -> Choice:
    """The choice of the best trial; of equal ones the first."""
    best: Choice = max(tried, key=lambda one: one["output_tokens_per_s"])["choice"]
    return best
