"""A circuit breaker: after repeated failures, calls are refused at once instead of waiting.

While open it lets one call through every `retry_after_s` to see whether the store is back.
"""

from collections.abc import Callable


class CircuitBreaker:
    """Counts consecutive failures of one dependency. For one event loop; not thread-safe."""

    def __init__(
        self, monotonic: Callable[[], float], *, threshold: int = 3, retry_after_s: float = 1.0
    ) -> None:
        self._monotonic = monotonic
        self._threshold = threshold
        self._retry_after_s = retry_after_s
        self._failures = 0
        self._next_try_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are being refused."""
        return self._failures >= self._threshold

    def allows(self) -> bool:
        """Whether a call may be made now. While open, a yes is given to one caller at a time."""
        if not self.is_open:
            return True
        now = self._monotonic()
        if now < self._next_try_at:
            return False
        self._next_try_at = now + self._retry_after_s
        return True

    def succeeded(self) -> None:
        """Close the circuit."""
        self._failures = 0

    def failed(self) -> None:
        """Count a failure; the one that reaches the threshold opens the circuit."""
        self._failures += 1
        if self.is_open:
            self._next_try_at = self._monotonic() + self._retry_after_s
