"""What the front refuses before a request costs anything."""

import math

from tenora_engine.front.replica import Replica
from tenora_engine.protocol.errors import (
    ContextLengthError,
    EngineOverloadedError,
    InvalidRequestError,
)
from tenora_engine.protocol.messages import GenerateRequest


def require_valid(request: GenerateRequest, replica: Replica) -> None:
    """Refuse values that would break the core or the counts, whoever sent them.

    Raises:
        InvalidRequestError: naming the field.
        ContextLengthError: prompt and output do not fit.
    """
    sampling = request.sampling
    checks = (
        (bool(request.request_id), "request_id", "must not be empty"),
        (bool(request.token_ids), "prompt", "must not be empty"),
        (request.max_tokens >= 1, "max_tokens", "must be at least 1"),
        (0 <= sampling.temperature < math.inf, "temperature", "must be finite and at least 0"),
        (0 < sampling.top_p <= 1, "top_p", "must be above 0 and at most 1"),
        (all(sampling.stop), "stop", "must not contain an empty string"),
        (0 < request.weight < math.inf, "weight", "must be finite and above 0"),
    )
    for is_valid, field, rule in checks:
        if not is_valid:
            raise InvalidRequestError(f"{field} {rule}.", param=field)
    if min(request.token_ids) < 0 or max(request.token_ids) >= replica.info.vocab_size:
        raise InvalidRequestError("The prompt has an unknown token id.", param="prompt")
    _require_room(request, replica)


def require_in_time(request: GenerateRequest, *, now_ms: int) -> None:
    """Refuse a request whose deadline has passed.

    Raises:
        EngineOverloadedError: with code `deadline_exceeded`.
    """
    if request.deadline_at_ms is not None and request.deadline_at_ms <= now_ms:
        raise deadline_exceeded()


def deadline_exceeded() -> EngineOverloadedError:
    """The error of a request that was not done in time."""
    return EngineOverloadedError(
        "The request was not finished before its deadline.",
        code="deadline_exceeded",
        retry_after_s=1.0,
    )


def _require_room(request: GenerateRequest, replica: Replica) -> None:
    num_prompt, room = len(request.token_ids), replica.max_total_tokens
    if num_prompt + request.max_tokens > room:
        raise ContextLengthError(
            f"The prompt has {num_prompt} tokens and asks for {request.max_tokens} more; "
            f"together they may be {room} tokens.",
            param="max_tokens",
        )
