"""The engine's errors in the platform's words: one mapping for every slice that calls it."""

import math

from tenora_engine.protocol.errors import (
    AdapterUnavailableError,
    EngineError,
    EngineOverloadedError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tenora_platform.errors import InvalidInput, PlatformError, RateLimited, ServiceUnavailable


def from_engine(error: EngineError, *, param: str | None = None) -> PlatformError:
    """The error to show for `error`; the engine's messages are safe and are kept.

    `param` is the field at fault where the engine names none.
    """
    retry_after_s = max(1, math.ceil(error.retry_after_s or 0))
    match error:
        case InvalidRequestError():
            return InvalidInput(error.message, code=error.code, param=error.param or param)
        case EngineOverloadedError():
            headers = {"retry-after": str(retry_after_s)}
            return RateLimited(error.message, code=error.code, headers=headers)
        case EngineUnavailableError() | AdapterUnavailableError():
            return ServiceUnavailable(error.message, code=error.code, retry_after_s=retry_after_s)
        case _:
            return PlatformError(error.message, code=error.code)
