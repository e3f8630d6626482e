"""POST /v1/chat/completions, whole: the answer, its numbers, and what never reaches the engine."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tenora_engine.protocol.errors import (
    AdapterUnavailableError,
    EngineError,
    EngineOverloadedError,
    EngineUnavailableError,
)
from tenora_engine.protocol.messages import GenerateRequest
from tenora_platform.usage.attribution import Attribution
from tests.support.app import Stack


async def test_answers_in_openai_shape(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    stack.engine.cached_prompt_tokens = 4
    response = await stack.chat(tenant)
    assert response.status_code == 200, response.text
    body = response.json()
    (choice,) = body["choices"]
    assert choice == {
        "message": {
            "content": "Hello, this is the base model.",
            "role": "assistant",
            "refusal": None,
        },
        "finish_reason": "stop",
        "index": 0,
        "logprobs": None,
    }
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == stack.base_model
    assert body["system_fingerprint"].startswith("fp_")
    prompt_tokens = len("<user>hi\n")
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 7,
        "total_tokens": prompt_tokens + 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_names_the_execution_and_the_request(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    response = await stack.chat(tenant)
    (record,) = await stack.journal()
    assert response.headers["x-tenora-execution"] == record.execution_hash
    assert response.json()["tenora"] == {"execution": record.execution_hash}
    assert response.json()["id"] == record.request_id
    assert record.request_id.endswith(response.headers["x-request-id"])


async def test_tells_the_engine_who_pays_and_nothing_more(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    await stack.chat(tenant, user="someone else", metadata={"tenant_id": "forged"})
    (request,) = stack.engine.accepted
    assert request.cache_scope == tenant.id.bytes
    assert request.fairness_key == str(tenant.id)
    envelope = Attribution.decode(request.attribution)
    assert envelope.tenant_id == tenant.id
    assert envelope.model == stack.base_model
    assert envelope.endpoint == "chat.completions"
    assert b"forged" not in request.attribution


async def test_sends_limits_as_headers(stack: Stack) -> None:
    response = await stack.chat(await stack.new_tenant())
    assert response.headers["x-ratelimit-limit-requests"] == "10000"
    assert response.headers["x-ratelimit-remaining-requests"] == "9999"
    assert "x-ratelimit-reset-tokens" in response.headers
    assert "x-quota-clamped" not in response.headers


async def test_a_maximum_beyond_the_window_is_the_window(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    stack.engine.info = _with_context(stack, 64)
    await stack.chat(tenant, max_tokens=10**9)
    await stack.chat(tenant, max_tokens=None)
    prompt_tokens = len("<user>hi\n")
    assert [request.max_tokens for request in stack.engine.accepted] == [64 - prompt_tokens] * 2


async def test_a_prompt_that_fills_the_window_is_refused_with_both_numbers(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    response = await stack.chat(tenant, messages=[{"role": "user", "content": "x" * 5000}])
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "5007" in error["message"]
    assert "2048" in error["message"]


async def test_an_answer_of_no_text_is_empty_and_not_null(stack: Stack) -> None:
    stack.engine.script = ()
    body = (await stack.chat(await stack.new_tenant())).json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 1


async def test_stops_at_the_maximum_with_reason_length(stack: Stack) -> None:
    body = (await stack.chat(await stack.new_tenant(), max_tokens=1)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "Hello"


# What is refused before anything is spent


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"model": "MODEL", "messages": [], "temperature": 0}',
        b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b'{"model": "MODEL", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "MODEL", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "n": 2}',
        b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "stream_options": {}}',
        b'{"model": ["MODEL"], "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "MODEL", "messages": ' + b"[" * 5000,
    ],
)
async def test_an_invalid_body_is_400_and_touches_nothing(stack: Stack, body: bytes) -> None:
    tenant = await stack.new_tenant()
    content = body.replace(b"MODEL", stack.base_model.encode())
    response = await stack.client.post(
        "/v1/chat/completions", content=content, headers=tenant.headers
    )
    assert response.status_code == 400, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert stack.engine.accepted == []
    assert await stack.settled(tenant) == []


async def test_a_body_over_the_limit_is_413_in_openai_shape(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    response = await stack.chat(tenant, user="x" * 70_000)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize(
    "model", ["", "sales-v2", "x\0y", "name@0", "a@b", "Ünï", "../x", "x" * 9999]
)
async def test_an_unknown_model_is_404_and_never_the_base(stack: Stack, model: str) -> None:
    response = await stack.chat(await stack.new_tenant(), model=model)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] == "model"
    assert stack.engine.accepted == []


async def test_the_base_model_has_no_second_spelling(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    for model in (f"{stack.base_model} ", stack.base_model.upper(), f"{stack.base_model}@1"):
        assert (await stack.chat(tenant, model=model)).status_code == 404


async def test_another_tenants_adapter_looks_absent(stack: Stack) -> None:
    owner, other = await stack.new_tenant(), await stack.new_tenant()
    assert (await stack.upload(owner, "secret-one")).status_code == 201
    foreign = await stack.chat(other, model="secret-one")
    absent = await stack.chat(other, model="secret-two")
    assert foreign.status_code == absent.status_code == 404
    assert foreign.text.replace("secret-one", "X") == absent.text.replace("secret-two", "X")


# What the engine refuses


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineOverloadedError("Busy.", retry_after_s=2.5), 429, "engine_overloaded"),
        (EngineUnavailableError("Down."), 503, "engine_unavailable"),
        (AdapterUnavailableError("Damaged."), 503, "adapter_unavailable"),
        (EngineError("Odd."), 500, "engine_error"),
    ],
)
async def test_an_engine_refusal_is_plain_json(
    stack: Stack, error: EngineError, status: int, code: str
) -> None:
    tenant = await stack.new_tenant()
    stack.engine.refuse_with = error
    for stream in (False, True):
        response = await stack.chat(tenant, stream=stream)
        assert response.status_code == status
        assert response.headers["content-type"] == "application/json"
        assert response.json()["error"]["code"] == code
    if status == 429:
        assert response.headers["retry-after"] == "3"


async def test_a_stopped_engine_is_503_with_retry_after(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    await stack.chat(tenant)
    stack.engine.is_serving = False
    response = await stack.chat(tenant)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


async def test_an_unexpected_fault_is_500_without_its_text(stack: Stack) -> None:
    def broken(request: GenerateRequest) -> Sequence[str]:
        raise RuntimeError("secret of the script")

    tenant = await stack.new_tenant()
    stack.engine.script = broken
    response = await stack.chat(tenant)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"]


def _with_context(stack: Stack, context_length: int) -> Any:
    import msgspec

    return msgspec.structs.replace(stack.engine.info, context_length=context_length)


async def test_two_tenants_may_send_the_same_request_id(stack: Stack) -> None:
    first, second = await stack.new_tenant(), await stack.new_tenant()
    responses: list[httpx.Response] = [
        await stack.client.post(
            "/v1/chat/completions",
            json=stack.chat_body(),
            headers={**tenant.headers, "x-request-id": "same"},
        )
        for tenant in (first, second)
    ]
    assert {r.headers["x-client-request-id"] for r in responses} == {"same"}
    assert len({r.headers["x-request-id"] for r in responses}) == 2
