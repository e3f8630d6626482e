"""What is measured: a cell is one kind of traffic at one concurrency. And in which order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from synthetic_adapters import MIXED_RANKS, random_bodies

Traffic = Literal["base", "one adapter", "mixed adapters"]

BASE = "base"
ADAPTERS = tuple(f"bench-{index}-r{rank}" for index, rank in enumerate(MIXED_RANKS))
"""Names by which every system knows the adapters of `synthetic_adapters.py`."""

WARM_UP_TOKENS = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One column of the table."""

    traffic: Traffic
    concurrency: int

    @property
    def label(self) -> str:
        """As in the table and the JSON."""
        return f"{self.traffic}, c{self.concurrency}"

    @property
    def targets(self) -> Sequence[str]:
        """What the requests name, in turn."""
        if self.traffic == "base":
            return (BASE,)
        return ADAPTERS[-1:] if self.traffic == "one adapter" else ADAPTERS


def cells_for(concurrencies: Sequence[int]) -> tuple[Cell, ...]:
    """Base at every level; one adapter where requests are alone, mixed ones where they are not."""
    base = [Cell("base", level) for level in concurrencies]
    adapters = [
        Cell("one adapter" if level == 1 else "mixed adapters", level) for level in concurrencies
    ]
    return (*base, *adapters)


@dataclass(frozen=True)
class Amount:
    """How much one visit to a cell sends."""

    prompt_tokens: int
    output_tokens: int
    rounds: int
    """Requests of each client."""

    def bodies(self, cell: Cell, visit: int) -> list[dict[str, Any]]:
        """Requests of one visit: equal for every system, and different for every visit."""
        count = self.rounds * cell.concurrency
        return self._random(cell, count, visit, self.output_tokens)

    def warm_up(self, cell: Cell, visit: int, *, is_cold: bool) -> list[dict[str, Any]]:
        """Short requests with prompts of their own: one of each client where the system is cold."""
        count = cell.concurrency if is_cold else 1
        return self._random(cell, count, 1_000 + visit, WARM_UP_TOKENS)

    def _random(
        self, cell: Cell, count: int, visit: int, output_tokens: int
    ) -> list[dict[str, Any]]:
        kinds: tuple[Traffic, ...] = ("base", "one adapter", "mixed adapters")
        seed = (visit * len(kinds) + kinds.index(cell.traffic)) * 1_000 + cell.concurrency
        return random_bodies(
            list(cell.targets),
            count,
            prompt_tokens=self.prompt_tokens,
            output_tokens=output_tokens,
            seed=seed,
        )


def alternate(systems: Sequence[T], alternations: int) -> Iterator[tuple[int, T]]:
    """(visit, system): all systems once, then all again. `A B C A B C`, never `A A B B`."""
    for visit in range(alternations):
        for system in systems:
            yield visit, system
