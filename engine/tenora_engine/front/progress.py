"""Whether the core makes progress, by its own reports and never by an open socket."""

from dataclasses import dataclass

from tenora_engine.core.messages import CoreStats
from tenora_engine.protocol.messages import Health

TICK_S = 1.0


@dataclass(frozen=True)
class StallLimits:
    """Seconds without a report. An idle core reports each second, a busy one after each step."""

    idle_s: float = 5.0
    busy_s: float = 20.0
    kill_s: float = 120.0
    """A core that was silent for that long is killed and started again."""


class CoreProgress:
    """Counts silence in ticks of our own loop, so a stall of the front is not held against it."""

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._silence_s = 0.0
        self.stats: CoreStats | None = None

    def reset(self) -> None:
        """A new core begins."""
        self._silence_s = 0.0
        self.stats = None

    def report(self, stats: CoreStats) -> None:
        """The core spoke."""
        self._silence_s = 0.0
        self.stats = stats

    def tick(self) -> None:
        """`TICK_S` passed."""
        self._silence_s += TICK_S

    def is_stalled(self, *, has_work: bool) -> bool:
        """Whether requests sent now would wait for a core that does not move."""
        limit_s = self._limits.busy_s if has_work else self._limits.idle_s
        return self._silence_s > limit_s

    def is_hopeless(self) -> bool:
        """Whether the core should be killed."""
        return self._silence_s > self._limits.kill_s

    def health(self, *, serving: bool, reason: str, journal_backlog: int) -> Health:
        """The given verdict with the core's last counters."""
        stats = self.stats
        if stats is None:
            return Health(serving=serving, reason=reason, journal_backlog=journal_backlog)
        return Health(
            serving=serving,
            reason=reason,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks,
            num_cached_blocks=stats.num_cached_blocks,
            num_running_adapters=stats.num_running_adapters,
            steps=stats.steps,
            journal_backlog=journal_backlog,
        )
