"""GET /v1/usage/records: a tenant's own records, page by page."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.app import Stack, TestTenant


async def _page(stack: Stack, tenant: TestTenant, **params: Any) -> Any:
    response = await stack.client.get("/v1/usage/records", params=params, headers=tenant.headers)
    assert response.status_code == 200, response.text
    return response.json()


async def test_shows_what_a_request_used_and_cost(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    await stack.upload(tenant, "support")
    answer = await stack.chat(tenant, model="support")
    await stack.settled(tenant)
    (record,) = (await _page(stack, tenant))["data"]
    assert record["request_id"] == answer.json()["id"]
    assert (record["model"], record["adapter_revision"]) == ("support", 1)
    assert record["outcome"] == "stop"
    usage = answer.json()["usage"]
    assert record["prompt_tokens"] == usage["prompt_tokens"]
    assert record["completion_tokens"] == usage["completion_tokens"]
    assert record["execution_hash"] == answer.headers["x-tenora-execution"]
    assert record["amount_nanousd"] == round(
        (usage["prompt_tokens"] * 3_000_000 + usage["completion_tokens"] * 6_000_000) / 1_000_000
    )


async def test_pages_cover_everything_once(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    ids = {(await stack.chat(tenant)).json()["id"] for _ in range(5)}
    await stack.settled(tenant)
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = await _page(stack, tenant, **params)
        seen += [record["request_id"] for record in page["data"]]
        if not page["has_more"]:
            break
        params["after"] = page["next"]
    assert len(seen) == 5
    assert set(seen) == ids


async def test_another_tenants_records_do_not_exist(stack: Stack) -> None:
    tenant, other = await stack.new_tenant(), await stack.new_tenant()
    await stack.chat(tenant)
    await stack.settled(tenant)
    assert (await _page(stack, other))["data"] == []
    assert (await _page(stack, other, model=stack.base_model))["data"] == []


async def test_filters_by_time_and_model(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    await stack.chat(tenant)
    await stack.settled(tenant)
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    assert len((await _page(stack, tenant, start=(now - hour).isoformat()))["data"]) == 1
    assert (await _page(stack, tenant, end=(now - hour).isoformat()))["data"] == []
    assert (await _page(stack, tenant, model="other"))["data"] == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "after=!!", "start=2026-01-01T00:00:00", "start=x",
     "end=x", "project_id=x", "model=%00"],
)  # fmt: skip
async def test_a_bad_query_is_400_and_names_the_parameter(stack: Stack, query: str) -> None:
    tenant = await stack.new_tenant()
    response = await stack.client.get(f"/v1/usage/records?{query}", headers=tenant.headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == query.split("=", maxsplit=1)[0]
