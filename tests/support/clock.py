"""A clock that moves only when a test says so."""

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Starts at noon of 2026-11-29 UTC. Implements `tenora_platform.kit.clock.Clock`."""

    def __init__(self, now: datetime = datetime(2026, 11, 29, 12, tzinfo=UTC)) -> None:
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> datetime:
        """The instant that was set."""
        return self._now

    def monotonic(self) -> float:
        """Seconds, moved by `advance` only."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
