"""Token counts to money: one formula, integers only, one rounding at the very end."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from tenora_engine.protocol.messages import Outcome, Usage
from tenora_platform.kit.money import round_half_even

PriceTarget = Literal["base", "adapter"]
TOKENS_PER_MTOK = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable price version: nano-USD per million tokens of each kind."""

    id: UUID
    base_model: str
    target: PriceTarget
    effective_at: datetime
    input_nanousd_per_mtok: int
    cached_input_nanousd_per_mtok: int
    output_nanousd_per_mtok: int


def are_countable(usage: Usage) -> bool:
    """Whether the counts can be true: none negative, cached tokens a part of the prompt."""
    return (
        0 <= usage.cached_prompt_tokens <= usage.prompt_tokens
        and usage.completion_tokens >= 0
        and usage.computed_tokens >= 0
        and usage.preemptions >= 0
    )


def rate(usage: Usage, price: Price) -> int:
    """What the tokens cost in nano-USD, rounded half-even once.

    Cached prompt tokens cost the cached rate, the rest of the prompt the full rate. Monotone in
    every count, so `Usage(prompt_tokens=p, completion_tokens=max_tokens)` is the most that a
    request can cost. Raises ValueError for counts that cannot be true.
    """
    if not are_countable(usage):
        raise ValueError("token counts must be non-negative and cached tokens part of the prompt")
    full_prompt_tokens = usage.prompt_tokens - usage.cached_prompt_tokens
    return round_half_even(
        full_prompt_tokens * price.input_nanousd_per_mtok
        + usage.cached_prompt_tokens * price.cached_input_nanousd_per_mtok
        + usage.completion_tokens * price.output_nanousd_per_mtok,
        TOKENS_PER_MTOK,
    )


def rate_outcome(outcome: Outcome, usage: Usage, price: Price) -> int:
    """What a request that ended with `outcome` costs in nano-USD.

    Our own faults cost nothing. A client that left pays for the prompt and for the tokens
    generated until it did.
    """
    return 0 if outcome == "error" else rate(usage, price)
