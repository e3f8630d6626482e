"""/v1/adapters: from upload to READY or REJECTED, revisions, and what stays behind."""

from typing import Any

import msgspec
import pytest

from tenora_engine.protocol.errors import AdapterUnavailableError, EngineUnavailableError
from tenora_engine.protocol.messages import (
    AdapterProblem,
    AdapterRef,
    AdapterReport,
    InspectRequest,
    ProbeReport,
)
from tests.support.app import Stack, TestTenant, nothing_is_left_of_uploads


async def _get(stack: Stack, tenant: TestTenant, name: str) -> Any:
    response = await stack.client.get(f"/v1/adapters/{name}", headers=tenant.headers)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_good_upload_is_ready_and_can_be_called(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    response = await stack.upload(tenant, "support")
    assert response.status_code == 201, response.text
    body = response.json()
    assert (body["adapter"], body["revision"], body["model"]) == ("support", 1, "support@1")
    assert (body["status"], body["max_rank"], body["size_bytes"]) == ("ready", 8, 4096)
    assert body["report"]["probe"]["changed_token_share"] == 0.5
    assert body["ready_at"]
    answer = (await stack.chat(tenant, model="support")).json()
    assert body["digest"][:8] in answer["choices"][0]["message"]["content"]
    assert answer["model"] == "support"
    assert answer["tenora"]["adapter"] == "support"
    assert answer["tenora"]["revision"] == 1
    assert nothing_is_left_of_uploads(stack)


async def test_the_same_name_again_is_a_new_revision(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    first = (await stack.upload(tenant, "support")).json()
    second = (await stack.upload(tenant, "support")).json()
    assert (first["revision"], second["revision"]) == (1, 2)
    for model in ("support", "support@1", "support@2"):
        await stack.chat(tenant, model=model)
    digests = [request.adapter.digest for request in stack.engine.accepted if request.adapter]
    assert digests == [second["digest"], first["digest"], second["digest"]]
    assert (await stack.chat(tenant, model="support@3")).status_code == 404
    adapter = await _get(stack, tenant, "support")
    assert adapter["revision"] == 2
    assert [r["revision"] for r in adapter["revisions"]] == [2, 1]


async def test_one_name_in_two_tenants_is_two_adapters(stack: Stack) -> None:
    one, two = await stack.new_tenant(), await stack.new_tenant()
    await stack.upload(one, "support")
    await stack.upload(two, "support")
    digests = {(await _get(stack, t, "support"))["revisions"][0]["digest"] for t in (one, two)}
    assert len(digests) == 2


async def test_a_refused_file_lists_every_problem_and_is_never_callable(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    problems = (
        AdapterProblem(code="dora_unsupported", message="No DoRA.", field="use_dora"),
        AdapterProblem(code="rank_too_large", message="At most 128.", field="r"),
    )
    stack.engine.inspect_adapter = _reports(  # type: ignore[method-assign]
        AdapterReport(ref=None, problems=problems)
    )
    response = await stack.upload(tenant, "bad")
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["code"] == "adapter_rejected"
    assert error["problems"] == msgspec.to_builtins(list(problems))
    assert (error["adapter"], error["revision"]) == ("bad", 1)
    assert (await stack.chat(tenant, model="bad")).status_code == 404
    adapter = await _get(stack, tenant, "bad")
    assert adapter["revision"] is None
    assert adapter["revisions"][0]["status"] == "rejected"
    assert len(adapter["revisions"][0]["report"]["problems"]) == 2
    assert nothing_is_left_of_uploads(stack)


@pytest.mark.parametrize(
    ("finite", "delta", "code"),
    [(True, 0.0, "no_effect"), (False, 1.0, "non_finite"), (True, float("nan"), "non_finite")],
)
async def test_an_adapter_without_a_sound_effect_is_rejected(
    stack: Stack, finite: bool, delta: float, code: str
) -> None:
    tenant = await stack.new_tenant()

    async def probe(ref: AdapterRef) -> ProbeReport:
        return ProbeReport(ref=ref, finite=finite, max_logit_delta=delta, changed_token_share=0.0)

    stack.engine.probe_adapter = probe  # type: ignore[method-assign]
    response = await stack.upload(tenant, "dud")
    assert response.status_code == 422
    assert [p["code"] for p in response.json()["error"]["problems"]] == [code]
    assert (await stack.chat(tenant, model="dud")).status_code == 404


async def test_a_bad_revision_leaves_the_good_one_serving(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    good = (await stack.upload(tenant, "support")).json()
    stack.engine.inspect_adapter = _reports(  # type: ignore[method-assign]
        AdapterReport(ref=None, problems=(AdapterProblem(code="empty", message="Empty."),))
    )
    assert (await stack.upload(tenant, "support")).status_code == 422
    await stack.chat(tenant, model="support")
    (request,) = stack.engine.accepted
    assert request.adapter == AdapterRef(digest=good["digest"])


async def test_an_adapter_that_cannot_be_loaded_is_rejected_with_the_reason(stack: Stack) -> None:
    tenant = await stack.new_tenant()

    async def probe(ref: AdapterRef) -> ProbeReport:
        raise AdapterUnavailableError("It does not fit.", code="adapter_too_large")

    stack.engine.probe_adapter = probe  # type: ignore[method-assign]
    response = await stack.upload(tenant, "huge")
    assert response.status_code == 422
    assert response.json()["error"]["problems"][0]["code"] == "adapter_too_large"


async def test_an_engine_that_goes_away_leaves_an_honest_state_and_a_retry_heals(
    stack: Stack,
) -> None:
    tenant = await stack.new_tenant()
    probe = stack.engine.probe_adapter

    async def lost(ref: AdapterRef) -> ProbeReport:
        raise EngineUnavailableError("Gone.")

    stack.engine.probe_adapter = lost  # type: ignore[method-assign]
    assert (await stack.upload(tenant, "support")).status_code == 503
    assert (await _get(stack, tenant, "support"))["revisions"][0]["status"] == "rejected"
    assert nothing_is_left_of_uploads(stack)
    stack.engine.probe_adapter = probe  # type: ignore[method-assign]
    assert (await stack.upload(tenant, "support")).json()["revision"] == 2
    assert (await stack.chat(tenant, model="support")).status_code == 200


@pytest.mark.parametrize("name", ["Support", "../a", "lora", "", "x" * 65])
async def test_a_bad_name_is_400_and_stores_nothing(stack: Stack, name: str) -> None:
    tenant = await stack.new_tenant()
    response = await stack.upload(tenant, name)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "name"
    assert nothing_is_left_of_uploads(stack)
    page = (await stack.client.get("/v1/adapters", headers=tenant.headers)).json()
    assert page["data"] == []


async def test_an_adapter_may_not_be_called_like_the_base_model(stack: Stack) -> None:
    response = await stack.upload(await stack.new_tenant(), stack.base_model)
    assert response.json()["error"]["code"] == "reserved_adapter_name"


async def test_the_list_pages_by_name(stack: Stack) -> None:
    tenant, other = await stack.new_tenant(), await stack.new_tenant()
    for name in ("c", "a", "b"):
        await stack.upload(tenant, name)
    await stack.upload(other, "d")
    seen: list[str] = []
    after = ""
    for _ in range(3):
        page = (
            await stack.client.get(
                "/v1/adapters", params={"limit": 1, "after": after}, headers=tenant.headers
            )
        ).json()
        seen += [adapter["name"] for adapter in page["data"]]
        after = page["next"] or ""
    assert seen == ["a", "b", "c"]
    assert page["has_more"] is False


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=%00", "after=A"])
async def test_a_bad_query_is_400_and_names_the_parameter(stack: Stack, query: str) -> None:
    tenant = await stack.new_tenant()
    response = await stack.client.get(f"/v1/adapters?{query}", headers=tenant.headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


@pytest.mark.parametrize("name", ["absent", "theirs", "A", "%00", "a@1"])
async def test_absent_foreign_and_impossible_names_are_not_found(stack: Stack, name: str) -> None:
    tenant, other = await stack.new_tenant(), await stack.new_tenant()
    await stack.upload(other, "theirs")
    response = await stack.client.get(f"/v1/adapters/{name}", headers=tenant.headers)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def _reports(report: AdapterReport) -> Any:
    async def inspect(request: InspectRequest) -> AdapterReport:
        return report

    return inspect
