"""Who may call which route: one declared policy a route, and no route without one.

    public          anyone
    operations      the operator's tools: bearer of the metrics token, or loopback if none is set
    api_key:SCOPE   a valid API key that carries SCOPE

A route declares its policy as `opt={"policy": ...}`. One that declares none answers 401.
"""

import secrets
from typing import Any, Final

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from tenora_platform.auth.authenticator import Authenticator
from tenora_platform.auth.principal import Principal
from tenora_platform.errors import PermissionDenied, Unauthenticated
from tenora_platform.observability.request_context import access_of

PUBLIC: Final = {"policy": "public"}
OPERATIONS: Final = {"policy": "operations"}
INFERENCE: Final = {"policy": "api_key:inference"}
ADAPTERS: Final = {"policy": "api_key:adapters"}
USAGE: Final = {"policy": "api_key:usage"}

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
_API_KEY: Final = "api_key:"

Connection = ASGIConnection[Any, Any, Any, Any]


class PolicyGuard:
    """The application's one guard. It runs before a body is read."""

    def __init__(self, authenticator: Authenticator, metrics_token: str | None) -> None:
        self._authenticator = authenticator
        self._metrics_token = metrics_token

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Let the request pass, or raise Unauthenticated or PermissionDenied."""
        policy = str(handler.opt.get("policy"))
        if policy == PUBLIC["policy"]:
            return
        if policy == OPERATIONS["policy"]:
            self._check_operations(connection)
        elif policy.startswith(_API_KEY):
            await self._check_api_key(connection, policy.removeprefix(_API_KEY))
        else:
            raise Unauthenticated

    async def _check_api_key(self, connection: Connection, needed: str) -> None:
        principal = await self._authenticator.authenticate(connection.headers.get("authorization"))
        access_of(connection.scope).facts.update(
            tenant_id=str(principal.scope.tenant_id), api_key_id=str(principal.api_key_id)
        )
        if not principal.has_scope(needed):
            raise PermissionDenied(f"This API key lacks the scope '{needed}'. Use one that has it.")
        connection.scope["user"] = principal

    def _check_operations(self, connection: Connection) -> None:
        if self._metrics_token is not None:
            sent = connection.headers.get("authorization", "").encode()
            if secrets.compare_digest(sent, f"Bearer {self._metrics_token}".encode()):
                return
        elif _is_direct_loopback(connection):
            return
        raise Unauthenticated(
            "This address is for the operator: call it locally or with its token."
        )


def _is_direct_loopback(connection: Connection) -> bool:
    """Loopback itself, not a proxy on this machine and not a tenant with a key."""
    client, headers = connection.client, connection.headers
    relayed = any(name in headers for name in ("x-forwarded-for", "forwarded", "authorization"))
    return client is not None and client.host in _LOOPBACK and not relayed


async def provide_principal(request: Request[Any, Any, Any]) -> Principal:
    """Who was authenticated. Only routes with an `api_key:` policy may ask for it."""
    principal: Principal = request.scope["user"]
    return principal
