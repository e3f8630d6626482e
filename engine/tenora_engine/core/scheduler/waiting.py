"""The waiting sequences, ordered by fairness across keys and by arrival inside a key."""

import bisect
from collections.abc import Iterator

from tenora_engine.core.scheduler.fairness import VirtualTokenCounters
from tenora_engine.core.sequence import Sequence


def _order(sequence: Sequence) -> tuple[int, int]:
    """Lower priority numbers first, then arrival; a preempted sequence keeps its place."""
    return (sequence.request.priority, sequence.arrival_index)


class WaitingQueue:
    """Sequences that hold no blocks. Iteration is in the order in which they should start."""

    def __init__(self, counters: VirtualTokenCounters) -> None:
        self._counters = counters
        self._by_key: dict[str, list[Sequence]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def keys(self) -> set[str]:
        """Fairness keys with waiting work."""
        return set(self._by_key)

    def add(self, sequence: Sequence) -> None:
        """Insert at the place that priority and arrival give it."""
        bisect.insort(
            self._by_key.setdefault(sequence.request.fairness_key, []), sequence, key=_order
        )
        self._length += 1

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        key = sequence.request.fairness_key
        queue = self._by_key[key]
        queue.remove(sequence)
        self._length -= 1
        if not queue:
            del self._by_key[key]

    def in_turn(self) -> Iterator[Sequence]:
        """A snapshot of all waiting sequences: least served key first."""
        for key in sorted(self._by_key, key=lambda k: (self._counters.served(k), k)):
            yield from list(self._by_key.get(key, ()))
