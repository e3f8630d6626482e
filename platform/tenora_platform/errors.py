"""Every error the platform answers with: one tree, rendered in two ways.

    PlatformError                  500 internal_error: also what an unknown exception becomes
    ├── InvalidInput               400 invalid_value: `param` names the field
    │   └── UnsupportedParameter   400 unsupported_parameter: known, not served, not neutral
    ├── Unauthenticated            401 invalid_api_key
    ├── PermissionDenied           403 permission_denied
    ├── NotFound                   404 not_found
    │   └── ModelNotFound          404 model_not_found: absent and foreign look the same
    ├── MethodNotAllowed           405 method_not_allowed
    ├── Conflict                   409 conflict
    ├── PayloadTooLarge            413 payload_too_large
    ├── UnprocessableContent       422 unprocessable_content: well-formed, yet refused
    ├── RateLimited                429 rate_limit_exceeded
    └── ServiceUnavailable         503 service_unavailable: come back later

`/v1/*` speaks OpenAI's error object, everything else RFC 9457 problem details: the same code,
sentence and request id. Messages are safe to show: no foreign name, path, secret or traceback.
"""
# ruff: noqa: N818 - the tree reads as statements ("raise Conflict"), so no "...Error" suffix

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar


class PlatformError(Exception):
    """Base of all errors with a stable `code`, an HTTP `status` and a safe `message`.

    `headers` go onto the response. `details` are extra members of the rendered body (the list
    of an adapter's problems, the limit that refused); their names must not collide with the
    standard ones.
    """

    status: ClassVar[int] = 500
    openai_type: str = "server_error"
    code: str = "internal_error"
    default_message: ClassVar[str] = (
        "Something failed on our side. Retry, and quote the request id."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
        openai_type: str | None = None,
    ) -> None:
        self.message = message or self.default_message
        super().__init__(self.message)
        self.code = code or type(self).code
        self.openai_type = openai_type or type(self).openai_type
        self.param = param
        self.headers: Mapping[str, str] = dict(headers or {})
        self.details: Mapping[str, Any] = dict(details or {})


class InvalidInput(PlatformError):
    """The request can never succeed as it is; `param` names the field at fault."""

    status = 400
    openai_type = "invalid_request_error"
    code = "invalid_value"
    default_message = "The request is not valid. Correct it before sending it again."


class UnsupportedParameter(InvalidInput):
    """A field of OpenAI's API that we do not serve was given a value that would matter."""

    code = "unsupported_parameter"


class Unauthenticated(PlatformError):
    """No credential, or none that is valid now."""

    status = 401
    openai_type = "invalid_request_error"
    code = "invalid_api_key"
    default_message = "Send a valid API key in the header 'Authorization: Bearer sk-tenora-...'."


class PermissionDenied(PlatformError):
    """Known, but not allowed to do this."""

    status = 403
    openai_type = "permission_error"
    code = "permission_denied"
    default_message = "This credential may not do that. Use one with the scope that it needs."


class NotFound(PlatformError):
    """Absent, or another tenant's: the answer is the same."""

    status = 404
    openai_type = "invalid_request_error"
    code = "not_found"
    default_message = "There is nothing under this address. Check it and send the request again."


class ModelNotFound(NotFound):
    """The `model` string names nothing that this tenant may call."""

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        shown = "".join(c if c.isprintable() else "?" for c in model[:100])
        super().__init__(
            f"The model '{shown}' does not exist or you do not have access to it. "
            "GET /v1/models lists what you can call.",
            param="model",
        )


class MethodNotAllowed(PlatformError):
    """The address exists, but not for this method."""

    status = 405
    openai_type = "invalid_request_error"
    code = "method_not_allowed"
    default_message = "This address does not take this method. /schema lists what it takes."


class Conflict(PlatformError):
    """The state of the thing does not allow this now."""

    status = 409
    openai_type = "invalid_request_error"
    code = "conflict"
    default_message = "This conflicts with the present state. Read it again before retrying."


class PayloadTooLarge(PlatformError):
    """The body is over the limit; it was not read to its end."""

    status = 413
    openai_type = "invalid_request_error"
    code = "payload_too_large"
    default_message = "The request body is over the size limit. Send a smaller one."


class UnprocessableContent(PlatformError):
    """Well-formed and understood, yet refused for what it contains."""

    status = 422
    openai_type = "invalid_request_error"
    code = "unprocessable_content"
    default_message = "The content was understood and refused. The body lists every reason."


class RateLimited(PlatformError):
    """Refused for now by a limit. Say when to come back in the header `retry-after`."""

    status = 429
    openai_type = "rate_limit_error"
    code = "rate_limit_exceeded"
    default_message = "A limit was reached. Wait for the time in the header 'retry-after'."


class ServiceUnavailable(PlatformError):
    """A part that the request needs is down or overloaded; a retry may succeed."""

    status = 503
    openai_type = "server_error"
    code = "service_unavailable"
    default_message = "The service cannot take the request now. Retry in a few seconds."

    def __init__(
        self, message: str | None = None, *, retry_after_s: int = 1, code: str | None = None
    ) -> None:
        super().__init__(message, code=code, headers={"retry-after": str(max(1, retry_after_s))})


def openai_body(error: PlatformError) -> dict[str, Any]:
    """Render as OpenAI's error object; its four standard keys are always present."""
    standard = {
        "message": error.message,
        "type": error.openai_type,
        "param": error.param,
        "code": error.code,
    }
    return {"error": {**error.details, **standard}}


def problem_body(error: PlatformError, *, request_id: str | None = None) -> dict[str, Any]:
    """Render as RFC 9457 problem details with our `code`, `param` and `request_id` beside it."""
    standard = {
        "type": f"urn:tenora:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
    }
    optional = {"param": error.param, "request_id": request_id}
    present = {name: value for name, value in optional.items() if value is not None}
    return {**error.details, **standard, **present}
