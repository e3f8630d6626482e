"""The text of one answer as its tokens come: detokenized, and cut at a stop string."""

from collections.abc import Sequence
from typing import NamedTuple

from tenora_engine.text.detokenizer import Detokenizer
from tenora_engine.text.stop_strings import StopStrings
from tenora_engine.text.token_bytes import TokenBytes


class AnswerPiece(NamedTuple):
    """What some tokens added.

    With `stopped` a stop string was completed by the last of the `num_tokens` counted; tokens
    after it do not belong to the answer.
    """

    text: str
    num_tokens: int
    stopped: bool


class AnswerText:
    """The pieces together are the answer that is returned at once when not streaming."""

    def __init__(
        self, token_bytes: TokenBytes, *, stops: Sequence[str] = (), starts_text: bool = False
    ) -> None:
        self._detokenizer = Detokenizer(token_bytes, starts_text=starts_text)
        self._stops = StopStrings(stops) if stops else None

    def push(self, token_ids: Sequence[int]) -> AnswerPiece:
        """Add sampled tokens."""
        if self._stops is None:
            return AnswerPiece(self._detokenizer.push(token_ids), len(token_ids), stopped=False)
        texts = []
        for count, token in enumerate(token_ids, start=1):
            text, stopped = self._stops.push(self._detokenizer.push((token,)))
            texts.append(text)
            if stopped:
                return AnswerPiece("".join(texts), count, stopped=True)
        return AnswerPiece("".join(texts), len(token_ids), stopped=False)

    def flush(self) -> AnswerPiece:
        """What is left once no more tokens will come: unfinished bytes and held-back text."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return AnswerPiece(rest, 0, stopped=False)
        text, stopped = self._stops.push(rest)
        return AnswerPiece(text if stopped else text + self._stops.flush(), 0, stopped)
