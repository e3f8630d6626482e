"""What a `FakeEngine` answers: scripts of token texts, cut as the real engine would cut them."""

from collections.abc import Callable, Sequence

import msgspec

from tenora_engine.protocol.messages import FinishReason, GenerateRequest

Script = Callable[[GenerateRequest], Sequence[str]]


def name_the_adapter(request: GenerateRequest) -> Sequence[str]:
    """The default script: greets, and says which adapter answers."""
    who = request.adapter.digest[:8] if request.adapter else "the base model"
    return ("Hello", ",", " this", " is ", who, ".")


class AnswerPlan(msgspec.Struct, frozen=True):
    """A whole answer, known in advance: no held-back text is needed to stop at the right place."""

    text: str
    ends: tuple[int, ...]
    """Per sampled token: how much of `text` is out after it."""
    reason: FinishReason


def plan_answer(script: tuple[str, ...], request: GenerateRequest) -> AnswerPlan:
    """Follow `script`, then one end token, until a stop string or `max_tokens` ends it."""
    text = ""
    ends: list[int] = []
    for piece in (*script, ""):
        if len(ends) == request.max_tokens:
            return AnswerPlan(text, tuple(ends), "length")
        text += piece
        ends.append(len(text))
        cut = _cut_at_stop(text, request.sampling.stop)
        if cut is not None:
            return AnswerPlan(text[:cut], tuple(min(end, cut) for end in ends), "stop")
    return AnswerPlan(text, tuple(ends), "stop")


def _cut_at_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string that is complete first begins."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(found)[1] if found else None
