"""Errors an engine answers with, on every transport.

    EngineError
    ├── InvalidRequestError      the request can never succeed; `param` names the field
    │   └── ContextLengthError   prompt and output do not fit the model's window
    ├── AdapterUnavailableError  the adapter cannot be loaded; other requests are undisturbed
    ├── EngineOverloadedError    refused for now; `retry_after_s` says when to come back
    └── EngineUnavailableError   the replica is down or lost the request; a retry may succeed

Every class has a stable `code`. Messages are safe to show: they name no tenant, path or secret.
"""

import msgspec


class EngineError(Exception):
    """Base of all engine errors."""

    code = "engine_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class InvalidRequestError(EngineError):
    """The request can never succeed as it is."""

    code = "invalid_request"


class ContextLengthError(InvalidRequestError):
    """Prompt plus output exceed the model's context window or the KV pool."""

    code = "context_length_exceeded"


class AdapterUnavailableError(EngineError):
    """The adapter's weights are missing or damaged."""

    code = "adapter_unavailable"


class EngineOverloadedError(EngineError):
    """The replica refuses new work for now."""

    code = "engine_overloaded"


class EngineUnavailableError(EngineError):
    """The replica is not serving, or was lost while it ran the request."""

    code = "engine_unavailable"


ERROR_KINDS: dict[str, type[EngineError]] = {
    kind.__name__: kind
    for kind in (
        EngineError,
        InvalidRequestError,
        ContextLengthError,
        AdapterUnavailableError,
        EngineOverloadedError,
        EngineUnavailableError,
    )
}


class ErrorPayload(msgspec.Struct, frozen=True, kw_only=True):
    """An `EngineError` as it crosses a wire."""

    kind: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: EngineError) -> "ErrorPayload":
        """Describe `error` without its traceback."""
        return cls(
            kind=type(error).__name__,
            code=error.code,
            message=error.message,
            param=error.param,
            retry_after_s=error.retry_after_s,
        )

    def to_error(self) -> EngineError:
        """Rebuild the error; an unknown kind becomes a plain `EngineError`."""
        kind = ERROR_KINDS.get(self.kind, EngineError)
        return kind(
            self.message, code=self.code, param=self.param, retry_after_s=self.retry_after_s
        )
