"""Every route has a policy, and every policy keeps strangers out."""

from collections.abc import Iterator

import pytest
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute

from tests.support.app import Stack, TestTenant

POLICIES = {
    "public",
    "operations",
    "api_key:inference",
    "api_key:adapters",
    "api_key:usage",
    "api_key:admin",
}
# Litestar answers OPTIONS itself and inherits the policy of the route, if that stands above it.
_AUTOMATIC = {"OPTIONS"}


def _routes(stack: Stack) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    for route in stack.app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                for method in handler.http_methods:
                    yield route.path, method, handler


def _concrete(path: str) -> str:
    for placeholder in ("{name:str}", "{model:path}", "{path:str}"):
        path = path.replace(placeholder, "theirs")
    return path


async def test_every_route_declares_a_policy(stack: Stack) -> None:
    undeclared = [
        (method, path)
        for path, method, handler in _routes(stack)
        if method not in _AUTOMATIC and handler.opt.get("policy") not in POLICIES
    ]
    assert undeclared == []


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer sk-tenora-short", "Basic eDp5", f"Bearer sk-tenora-{'x' * 43}"],
)
async def test_no_route_with_a_key_policy_opens_without_a_key(
    stack: Stack, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    walked = 0
    for path, method, handler in _routes(stack):
        policy = str(handler.opt.get("policy"))
        if policy in ("public", "operations"):
            continue
        response = await stack.client.request(method, _concrete(path), headers=headers)
        assert response.status_code == 401, (method, path)
        if path.startswith("/v1/") and method != "HEAD":
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert "sk-tenora-x" not in response.text
        walked += 1
    assert walked >= 8


async def test_every_named_thing_of_another_tenant_is_404(stack: Stack) -> None:
    owner, other = await stack.new_tenant(), await stack.new_tenant()
    await stack.upload(owner, "theirs")
    walked = 0
    for path, method, handler in _routes(stack):
        policy = str(handler.opt.get("policy"))
        if "{" not in path or method in _AUTOMATIC or not policy.startswith("api_key:"):
            continue
        mine = await stack.client.request(method, _concrete(path), headers=owner.headers)
        theirs = await stack.client.request(method, _concrete(path), headers=other.headers)
        assert (mine.status_code, theirs.status_code) == (200, 404), (method, path)
        walked += 1
    assert walked >= 2


@pytest.mark.parametrize(
    ("scope", "method", "path"),
    [
        ("inference", "GET", "/v1/models"),
        ("adapters", "GET", "/v1/adapters"),
        ("usage", "GET", "/v1/usage/records"),
    ],
)
async def test_a_key_opens_only_what_its_scopes_name(
    stack: Stack, scope: str, method: str, path: str
) -> None:
    others = {"inference", "adapters", "usage"} - {scope}
    allowed = await stack.new_tenant(scopes=(scope,))
    denied = await stack.new_tenant(scopes=tuple(others))
    assert (await stack.client.request(method, path, headers=allowed.headers)).status_code == 200
    response = await stack.client.request(method, path, headers=denied.headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "permission_denied"


async def test_unknown_addresses_and_methods_speak_the_dialect_of_their_path(
    stack: Stack,
) -> None:
    tenant: TestTenant = await stack.new_tenant()
    data_plane = await stack.client.get("/v1/nothing", headers=tenant.headers)
    assert data_plane.status_code == 404
    assert data_plane.json()["error"]["code"] == "not_found"
    wrong_method = await stack.client.delete("/v1/chat/completions", headers=tenant.headers)
    assert wrong_method.status_code == 405
    assert wrong_method.json()["error"]["code"] == "method_not_allowed"
    elsewhere = await stack.client.get("/nothing")
    assert elsewhere.status_code == 404
    assert elsewhere.headers["content-type"].startswith("application/problem+json")
    problem = elsewhere.json()
    assert problem["code"] == "not_found"
    assert problem["request_id"] == elsewhere.headers["x-request-id"]


async def test_the_schema_describes_the_bodies(stack: Stack) -> None:
    for path in ("/schema", "/schema/openapi.json"):
        document = (await stack.client.get(path)).json()
        chat = document["paths"]["/v1/chat/completions"]["post"]
        assert "ChatRequest" in str(chat["requestBody"])
        assert "temperature" in document["components"]["schemas"]["ChatRequest"]["properties"]
        assert "ErrorBody" in str(chat["responses"]["400"])
