"""A key over a limit gets an honest 429 through the official SDK."""

from uuid import uuid4

import openai
import pytest

from tenora_platform.db.session import Database
from tenora_platform.kit.clock import SystemClock
from tenora_platform.tenants.provisioning import TenantLimit, provision_tenant
from tests.support.installation import Installation

OPEN = (TenantLimit("requests_per_minute", 1000), TenantLimit("tokens_per_minute", 100_000))


async def tenant_with(installation: Installation, *limits: TenantLimit) -> openai.OpenAI:
    """A fresh tenant with the given limits, as an SDK client that never retries."""
    database = Database(installation.database_url, pool_size=1)
    try:
        made = await provision_tenant(
            database, SystemClock(), slug=f"t-{uuid4().hex[:12]}", name="Limited", limits=limits
        )
    finally:
        await database.close()
    return openai.OpenAI(base_url=f"{installation.base_url}/v1", api_key=made.secret, max_retries=0)


def ask(client: openai.OpenAI, installation: Installation, max_tokens: int = 4) -> None:
    client.chat.completions.create(
        model=installation.demo["base_model"],
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=max_tokens,
        temperature=0,
    )


def refusal(client: openai.OpenAI, installation: Installation) -> openai.RateLimitError:
    """The first refusal of a few requests in a row."""
    for _ in range(4):
        try:
            ask(client, installation)
        except openai.RateLimitError as error:
            return error
    raise AssertionError("four requests passed the limit")


async def test_requests_per_minute(installation: Installation) -> None:
    client = await tenant_with(installation, TenantLimit("requests_per_minute", 2))
    error = refusal(client, installation)
    assert error.code == "rate_limit_exceeded"
    assert isinstance(error.body, dict)
    assert set(error.body) >= {"message", "type", "param", "code"}
    headers = error.response.headers
    assert int(headers["retry-after"]) >= 1
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-ratelimit-reset-requests" in headers
    assert headers.get("x-should-retry") != "false"


async def test_tokens_per_minute(installation: Installation) -> None:
    client = await tenant_with(installation, TenantLimit("tokens_per_minute", 90))
    error = refusal(client, installation)
    assert error.code == "rate_limit_exceeded"
    assert error.response.headers["x-ratelimit-limit-tokens"] == "90"
    assert int(error.response.headers["retry-after"]) >= 1


async def test_budget_refusal_tells_the_sdk_not_to_retry(installation: Installation) -> None:
    client = await tenant_with(installation, *OPEN, TenantLimit("budget", 8_000, period="month"))
    error = refusal(client, installation)
    assert error.type == "insufficient_quota"
    assert error.response.headers["x-should-retry"] == "false"


async def test_concurrency(installation: Installation) -> None:
    client = await tenant_with(installation, *OPEN, TenantLimit("concurrency", 1))
    with client.chat.completions.create(
        model=installation.demo["base_model"],
        messages=[{"role": "user", "content": "Write a long story."}],
        max_tokens=200,
        stream=True,
    ) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            ask(client, installation)
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_success_carries_the_limits_too(installation: Installation) -> None:
    client = await tenant_with(installation, *OPEN)
    raw = client.chat.completions.with_raw_response.create(
        model=installation.demo["base_model"],
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=2,
    )
    assert raw.headers["x-ratelimit-limit-requests"] == "1000"
    assert 0 <= int(raw.headers["x-ratelimit-remaining-tokens"]) < 100_000
    assert raw.headers["x-tenora-execution"]
