"""After every kind of end: nothing reserved, one record, the cost that the counts give."""

import asyncio
import dataclasses

import pytest

from tenora_engine.protocol.errors import EngineError, EngineOverloadedError
from tenora_engine.protocol.messages import Usage
from tenora_platform.app import create_app
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.rating import rate
from tenora_platform.kit.clock import SystemClock
from tenora_platform.tenants.provisioning import TenantLimit
from tests.support.app import PLENTY, PRICES, Stack, running_app

ONE_AT_A_TIME = (TenantLimit("concurrency", 1), *[x for x in PLENTY if x.kind != "concurrency"])


async def test_a_finished_request_is_settled_at_once_and_booked_once(stack: Stack) -> None:
    tenant = await stack.new_tenant(limits=ONE_AT_A_TIME)
    stack.engine.cached_prompt_tokens = 3
    for _ in range(3):  # each would be refused if the one before were still held
        assert (await stack.chat(tenant)).status_code == 200
    rows = await stack.settled(tenant)
    assert [row.outcome for row in rows] == ["stop"] * 3
    full, cached, output = PRICES["base"]
    expected = round(((9 - 3) * full + 3 * cached + 7 * output) / 1_000_000)
    assert {row.amount_nanousd for row in rows} == {expected}
    assert await stack.held(tenant) == 0


async def test_the_record_equals_the_usage_that_the_client_saw(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    usage = (await stack.chat(tenant)).json()["usage"]
    (row,) = await stack.settled(tenant)
    assert (row.prompt_tokens, row.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


@pytest.mark.parametrize("error", [EngineOverloadedError("Busy."), EngineError("Odd.")])
async def test_a_refusal_by_the_engine_gives_everything_back(
    stack: Stack, error: EngineError
) -> None:
    tenant = await stack.new_tenant(limits=ONE_AT_A_TIME)
    stack.engine.refuse_with = error
    for _ in range(3):
        assert (await stack.chat(tenant)).status_code >= 429
    stack.engine.refuse_with = None
    assert (await stack.chat(tenant)).status_code == 200
    assert len(await stack.settled(tenant)) == 1


async def test_validation_errors_reserve_nothing(stack: Stack) -> None:
    tenant = await stack.new_tenant(limits=(TenantLimit("requests_per_minute", 1),))
    for _ in range(3):
        assert (await stack.chat(tenant, temperature=9)).status_code == 400
        assert (await stack.chat(tenant, model="nope")).status_code == 404
    assert (await stack.chat(tenant)).status_code == 200


async def test_a_lost_engine_costs_nothing_and_frees_the_hold(stack: Stack) -> None:
    tenant = await stack.new_tenant(limits=ONE_AT_A_TIME)
    stack.engine.fail_after_tokens = 2
    assert (await stack.chat(tenant)).status_code == 503
    (row,) = await stack.settled(tenant)
    assert (row.outcome, row.amount_nanousd) == ("error", 0)
    assert await stack.held(tenant) == 0


async def test_a_refusal_names_the_limit_and_when_to_come_back(stack: Stack) -> None:
    tenant = await stack.new_tenant(limits=(TenantLimit("requests_per_minute", 1),))
    assert (await stack.chat(tenant)).status_code == 200
    response = await stack.chat(tenant)
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["x-ratelimit-remaining-requests"] == "0"
    assert response.headers["x-should-retry"] == "true"


async def test_an_exhausted_budget_tells_the_sdk_not_to_retry(stack: Stack) -> None:
    tenant = await stack.new_tenant(limits=(TenantLimit("budget", 1, period="month"),))
    response = await stack.chat(tenant)
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "insufficient_quota"
    assert response.headers["x-should-retry"] == "false"
    assert stack.engine.accepted == []


async def test_parallel_requests_never_pass_a_budget_together(stack: Stack) -> None:
    clock = SystemClock()
    price = await PriceBook(stack.database, clock).current(stack.base_model, clock.now())
    worst = rate(Usage(prompt_tokens=9, completion_tokens=32), price)
    tenant = await stack.new_tenant(
        limits=(TenantLimit("budget", 2 * worst + worst // 2, period="month"),)
    )
    stack.engine.token_interval_s = 0.02
    responses = await asyncio.gather(*(stack.chat(tenant) for _ in range(10)))
    assert sorted(r.status_code for r in responses) == [200] * 2 + [429] * 8
    assert len(stack.engine.accepted) == 2


async def test_without_a_maximum_the_tightest_token_limit_bounds_the_output(stack: Stack) -> None:
    tenant = await stack.new_tenant(limits=(TenantLimit("tokens_per_minute", 12),))
    response = await stack.chat(tenant, max_tokens=None)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert response.json()["usage"]["completion_tokens"] == 3
    assert response.headers["x-quota-clamped"] == "1"


async def test_without_redis_the_answer_is_503_and_nothing_runs(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    settings = dataclasses.replace(stack.settings, redis_url="unix:///nowhere.sock")
    async with running_app(create_app(settings, engine=stack.engine)) as client:
        response = await client.post(
            "/v1/chat/completions", json=stack.chat_body(), headers=tenant.headers
        )
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert stack.engine.accepted == []
