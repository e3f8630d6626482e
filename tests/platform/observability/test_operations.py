"""/health and /metrics: what they say, and to whom."""

import dataclasses

import httpx
import pytest

from tenora_platform.app import create_app
from tests.support.app import Stack, in_process, running_app


async def test_health_is_200_while_a_request_would_be_served(stack: Stack) -> None:
    response = await stack.client.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "serving": True,
        "parts": {"engine": "ok", "database": "ok", "quotas": "ok"},
    }


async def test_health_is_503_without_the_engine(stack: Stack) -> None:
    stack.engine.is_serving = False
    response = await stack.client.get("/health")
    assert response.status_code == 503
    assert response.json()["parts"] == {"engine": "unavailable", "database": "ok", "quotas": "ok"}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"redis_url": "unix:///nowhere.sock"}, "quotas"),
        ({"database_url": "postgresql+asyncpg://x@/x?host=/nowhere"}, "database"),
    ],
)
async def test_health_is_503_without_a_store(
    stack: Stack, change: dict[str, str], part: str
) -> None:
    settings = dataclasses.replace(stack.settings, **change)  # type: ignore[arg-type]
    async with running_app(create_app(settings, engine=stack.engine)) as client:
        response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["parts"][part] == "unavailable"


async def test_metrics_count_requests_by_template_and_never_by_name(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    await stack.upload(tenant, "secret-name")
    await stack.chat(tenant, model="secret-name")
    await stack.client.get("/v1/adapters/secret-name", headers=tenant.headers)
    await stack.client.get("/scanner/path.php")
    text = (await stack.client.get("/metrics")).text
    assert 'path="/v1/adapters/{name}"' in text
    assert 'tenora_tokens_total{kind="completion"} 7.0' in text
    assert 'tenora_generations_total{outcome="stop"} 1.0' in text
    assert "tenora_engine_serving 1.0" in text
    for private in ("secret-name", str(tenant.id), "scanner"):
        assert private not in text


async def test_metrics_are_not_for_tenants_nor_for_the_outside(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    assert (await stack.client.get("/metrics", headers=tenant.headers)).status_code == 401
    relayed = await stack.client.get("/metrics", headers={"x-forwarded-for": "127.0.0.1"})
    assert relayed.status_code == 401
    outside = in_process(stack.app, "10.1.2.3")
    async with httpx.AsyncClient(transport=outside, base_url="http://t") as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_a_metrics_token_is_needed_once_it_is_set(stack: Stack) -> None:
    settings = dataclasses.replace(stack.settings, metrics_token="s3cret")
    async with running_app(create_app(settings, engine=stack.engine)) as client:
        statuses = [
            (await client.get("/metrics", headers=headers)).status_code
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Bearer s3cret"},
            )
        ]
    assert statuses == [401, 401, 200]
