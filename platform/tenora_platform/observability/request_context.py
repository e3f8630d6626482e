"""The outermost layer of a request: its id, and its one line in the access log.

The id is made here, whatever the client sends. A client's own `X-Request-Id` is echoed as
`x-client-request-id` and logged, if it is short and plain; nothing is ever keyed by it.
"""

import re
import time
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from tenora_platform.observability.metrics import Metrics

_log = structlog.get_logger("tenora.access")
_STATE_KEY: Final = "tenora_access"
_CLIENT_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# Probes arrive every second; their lines would bury the others.
_QUIET_PATHS: Final = frozenset({"/health", "/metrics"})


@dataclass(slots=True)
class Access:
    """What the access log says about one request. Handlers fill in what they learn."""

    request_id: str
    client_request_id: str | None
    status: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """Ids, hashes and counts only: they go into the log as they are."""


class RequestContext:
    """ASGI middleware around the whole application, also around its 404s."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; anything but HTTP passes through."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        access = Access(uuid4().hex, _client_request_id(scope))
        scope.setdefault("state", {})[_STATE_KEY] = access
        started = time.perf_counter()
        structlog.contextvars.bind_contextvars(request_id=access.request_id)
        try:
            await self._app(scope, receive, _answering(access, send))
        finally:
            self._finish(scope, access, time.perf_counter() - started)
            structlog.contextvars.unbind_contextvars("request_id")

    def _finish(self, scope: Scope, access: Access, duration_s: float) -> None:
        path = scope.get("path_template") or "unmatched"
        method, status = str(scope.get("method")), access.status
        self._metrics.request_finished(method, path, status, duration_s)
        if path in _QUIET_PATHS:
            return
        _log.info(
            "http.request_finished",
            method=method,
            path=path,
            status=status,
            duration_ms=round(duration_s * 1000, 3),
            client_request_id=access.client_request_id,
            **access.facts,
        )


def access_of(scope: Scope) -> Access:
    """The access entry of the request that `scope` belongs to."""
    access: Access = scope["state"][_STATE_KEY]
    return access


def request_id_of(scope: Scope) -> str:
    """The server-made id of the request that `scope` belongs to."""
    return access_of(scope).request_id


def _client_request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _CLIENT_ID.fullmatch(value):
            return value.decode("ascii")
    return None


def _answering(access: Access, send: Send) -> Send:
    """`send` that notes the status and adds the id headers."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            access.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", access.request_id.encode())]
            if access.client_request_id:
                headers.append((b"x-client-request-id", access.client_request_id.encode()))
            message["headers"] = headers
        await send(message)

    return answer
