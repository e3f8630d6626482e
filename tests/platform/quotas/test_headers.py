"""Refusals and successes as headers and bodies that OpenAI's client understands."""

import pytest

from tenora_platform.errors import openai_body, problem_body
from tenora_platform.quotas.errors import QuotaExceeded
from tenora_platform.quotas.headers import duration, ratelimit_headers
from tenora_platform.quotas.limits import Limit, ScopeKind
from tenora_platform.quotas.reservation import LimitState
from tests.platform.quotas.world import World


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1001, "2s"),
        (360_000, "6m0s"),
        (3_605_000, "1h0m5s"),
    ],
)
def test_durations_are_written_as_openai_does(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


async def test_headers_tell_the_tightest_limit_of_each_kind(world: World) -> None:
    world.limits = (
        world.limit("requests_per_minute", 60),
        world.limit("requests_per_minute", 600, "tenant"),
        world.limit("tokens_per_minute", 6000),
        world.limit("concurrency", 1),
    )
    headers = ratelimit_headers(await world.reserve(prompt=50, output=50))
    assert headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5900",
        "x-ratelimit-reset-tokens": "1s",
    }


async def test_rate_refusal_says_when_to_come_back(world: World) -> None:
    world.limits = (world.limit("requests_per_minute", 40, "api_key"),)
    for _ in range(40):
        await world.reserve()
    with pytest.raises(QuotaExceeded) as caught:
        await world.reserve()
    error = caught.value
    assert error.status == 429
    assert error.headers["retry-after"] == "2"
    assert error.headers["retry-after-ms"] == "1500"
    assert error.headers["x-should-retry"] == "true"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    body = openai_body(error)["error"]
    assert (body["type"], body["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert body["quota"]["scope"] == "api_key"
    assert problem_body(error)["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("scope", "code"),
    [
        ("tenant", "organization_spend_limit_exceeded"),
        ("project", "project_spend_limit_exceeded"),
        ("api_key", "api_key_spend_limit_exceeded"),
    ],
)
def test_budget_refusal_tells_the_client_not_to_retry(scope: ScopeKind, code: str) -> None:
    budget = Limit(id="1", scope_kind=scope, scope_id="x", kind="budget", value=1000, period="day")
    state = LimitState(
        limit=budget,
        requested=300,
        used=800,
        remaining=200,
        reset_ms=60_000,
        wait_ms=60_000,
        committed=500,
        held=300,
        period_name="2026-11-29",
    )
    error = QuotaExceeded(state, (state,))
    body = openai_body(error)["error"]
    assert (body["type"], body["code"]) == ("insufficient_quota", code)
    assert error.headers["x-should-retry"] == "false"
    assert error.headers["retry-after"] == "60"
    quota = body["quota"]
    assert (quota["limit"], quota["committed_nanousd"], quota["held_nanousd"]) == (1000, 500, 300)
    assert "daily" in error.message
