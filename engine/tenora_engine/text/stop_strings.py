"""Finds stop strings in text that arrives in pieces, holding back no more than it must."""

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """Text that may leave now, and whether a stop string ended the output."""

    text: str
    stopped: bool


class StopStrings:
    """Cuts the output before the stop string that is complete first.

    Of several that are complete at the same character, the longest counts: it begins first. So
    the result depends on the text alone and never on how it was cut into pieces. Held back is
    exactly the longest end of the text that begins some stop string. Cost per character does not
    depend on the length of text or stop strings (Knuth, Morris and Pratt's automaton).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings; without any, all text passes."""
        self._stops = tuple(stops)
        self._failures = tuple(_failure_function(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> StopResult:
        """Take the next piece. After `stopped` the object is spent."""
        if not self._stops:
            return StopResult(text, stopped=False)
        waiting = self._held + text
        for index, character in enumerate(text, start=len(self._held) + 1):
            length = self._advance(character)
            if length:
                return StopResult(waiting[: index - length], stopped=True)
        cut = len(waiting) - max(self._matched)
        self._held = waiting[cut:]
        return StopResult(waiting[:cut], stopped=False)

    def flush(self) -> str:
        """What is still held back, once no more text will come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> int:
        """Feed one character; the length of the longest stop string that it completes, or 0."""
        completed = 0
        for which, stop in enumerate(self._stops):
            matched, failures = self._matched[which], self._failures[which]
            while matched and stop[matched] != character:
                matched = failures[matched - 1]
            if stop[matched] == character:
                matched += 1
            self._matched[which] = matched
            if matched == len(stop):
                completed = max(completed, matched)
        return completed


def _failure_function(pattern: str) -> tuple[int, ...]:
    """Per prefix of `pattern`: the length of its longest proper prefix that is also its end."""
    failures = [0] * len(pattern)
    matched = 0
    for index in range(1, len(pattern)):
        while matched and pattern[matched] != pattern[index]:
            matched = failures[matched - 1]
        if pattern[matched] == pattern[index]:
            matched += 1
        failures[index] = matched
    return tuple(failures)
