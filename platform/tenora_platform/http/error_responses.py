"""Exceptions to responses: OpenAI's error object below `/v1/`, problem details elsewhere."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi import ResponseSpec
from litestar.types import ExceptionHandlersMap

from tenora_engine.protocol.errors import EngineError
from tenora_platform.engine_errors import from_engine
from tenora_platform.errors import (
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    PlatformError,
    Unauthenticated,
    openai_body,
    problem_body,
)
from tenora_platform.observability.request_context import access_of, request_id_of

_log = structlog.get_logger(__name__)

# What Litestar itself raises, in our words: its own sentences may quote the request.
_FRAMEWORK_ERRORS: Final[Mapping[int, type[PlatformError]]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: MethodNotAllowed,
    413: PayloadTooLarge,
}


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's error members; some errors carry more, such as `quota` or `problems`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's error object, as everything below `/v1/` answers with it."""

    error: ErrorDetail


def documented(*statuses: int) -> dict[int, ResponseSpec]:
    """The errors of a `/v1/` route for its OpenAPI description; those of every route included."""
    return {
        status: ResponseSpec(ErrorBody, description=HTTPStatus(status).phrase)
        for status in (400, 401, 403, *statuses, 503)
    }


def error_response(request: Request[Any, Any, Any], error: PlatformError) -> Response[Any]:
    """Render `error` in the dialect of the path that was called."""
    access_of(request.scope).facts["error_code"] = error.code
    if request.scope["path"].startswith("/v1/"):
        body, media_type = openai_body(error), "application/json"
    else:
        body = problem_body(error, request_id=request_id_of(request.scope))
        media_type = "application/problem+json"
    return Response(
        body, status_code=error.status, headers=dict(error.headers), media_type=media_type
    )


def _framework_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    known = _FRAMEWORK_ERRORS.get(error.status_code)
    if known is None:
        return _unknown_error(request, error)
    return error_response(request, known(param=_parameter_at_fault(error)))


def _parameter_at_fault(error: HTTPException) -> str | None:
    """The first query or path parameter that Litestar's validation names."""
    extra = error.extra if isinstance(error, ValidationException) else None
    named = [item.get("key") for item in extra or () if isinstance(item, dict)]
    return next((str(key) for key in named if key and key != "data"), None)


def _engine_error(request: Request[Any, Any, Any], error: EngineError) -> Response[Any]:
    return error_response(request, from_engine(error))


def _unknown_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    _log.error("http.unexpected_error", exc_info=error)
    return error_response(request, PlatformError())


EXCEPTION_HANDLERS: Final[ExceptionHandlersMap] = {
    PlatformError: error_response,
    EngineError: _engine_error,
    HTTPException: _framework_error,
    Exception: _unknown_error,
}
