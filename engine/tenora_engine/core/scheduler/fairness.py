"""Weighted virtual token counters: whose turn is it?

Each fairness key pays for service in tokens divided by its weight; the waiting key that has
paid least goes first. A key that returns after idling is lifted to the least active counter, so
idle time earns no credit. Source: "Fairness in Serving Large Language Models",
arXiv 2401.00588.
"""

from collections.abc import Iterable

PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0


class VirtualTokenCounters:
    """Service received by each fairness key, in weighted tokens."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    def lift(self, key: str, active_keys: Iterable[str]) -> None:
        """Call when `key` gets work while it had none: no credit for the time it was away."""
        floor = min((self._served.get(k, 0.0) for k in active_keys if k != key), default=None)
        if floor is not None:
            self._served[key] = max(self._served.get(key, 0.0), floor)
        else:
            self._served.setdefault(key, 0.0)

    def charge_prompt(self, key: str, num_tokens: int, weight: float) -> None:
        """Account for prompt tokens computed for `key`."""
        self._charge(key, PROMPT_TOKEN_COST * num_tokens / weight)

    def charge_output(self, key: str, num_tokens: int, weight: float) -> None:
        """Account for output tokens sampled for `key`."""
        self._charge(key, OUTPUT_TOKEN_COST * num_tokens / weight)

    def _charge(self, key: str, cost: float) -> None:
        self._served[key] = self._served.get(key, 0.0) + cost

    def served(self, key: str) -> float:
        """Weighted tokens that `key` has received."""
        return self._served.get(key, 0.0)

    def forget_idle(self, active_keys: set[str]) -> None:
        """Drop idle keys once nobody is active; counters only matter relative to each other."""
        if not active_keys:
            self._served.clear()
