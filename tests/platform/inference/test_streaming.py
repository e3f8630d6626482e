"""Streams over a real socket, read raw and by the official client."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.support.app import Stack, TestTenant

EMOJI = ("Grü", "ße ", "\u2028", "日本", "", "\x85", "👩‍👩‍👧", "\n", "end")


async def _events(
    stack: Stack, url: str, tenant: TestTenant, path: str, **fields: Any
) -> list[str]:
    """The payloads of all events, each of which must be one line."""
    body = stack.chat_body(stream=True, **fields)
    if path == "/v1/completions":
        del body["messages"]
        body["prompt"] = "hi"
    async with httpx.AsyncClient(base_url=url) as client:
        response = await client.post(path, json=body, headers=tenant.headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(len(block.splitlines()) == 1 for block in blocks)
    return [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]


async def test_a_stream_says_what_the_whole_answer_says(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = EMOJI
    whole = (await stack.chat(tenant)).json()
    *chunks, done = await _events(stack, live_url, tenant, "/v1/chat/completions")
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    deltas = [chunk["choices"][0]["delta"] for chunk in parsed]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert (
        "".join(d.get("content", "") for d in deltas) == whole["choices"][0]["message"]["content"]
    )
    assert [c["choices"][0]["finish_reason"] for c in parsed] == [None] * (len(parsed) - 1) + [
        "stop"
    ]
    assert deltas[-1] == {}
    assert len({(c["id"], c["created"], c["model"]) for c in parsed}) == 1
    assert {c["object"] for c in parsed} == {"chat.completion.chunk"}
    assert parsed[-1]["tenora"] == whole["tenora"]
    assert all("usage" not in chunk for chunk in parsed)


async def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(
    stack: Stack, live_url: str
) -> None:
    tenant = await stack.new_tenant()
    *chunks, done = await _events(
        stack, live_url, tenant, "/v1/chat/completions", stream_options={"include_usage": True}
    )
    *others, last = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 7
    assert all(chunk["usage"] is None for chunk in others)


async def test_text_completions_stream_too(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    *chunks, done = await _events(stack, live_url, tenant, "/v1/completions")
    parsed = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]"
    assert {c["object"] for c in parsed} == {"text_completion"}
    assert "".join(c["choices"][0]["text"] for c in parsed) == "Hello, this is the base model."
    assert parsed[-1]["choices"][0]["finish_reason"] == "stop"


async def test_an_answer_of_no_text_still_has_role_and_finish(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = ()
    *chunks, _ = await _events(stack, live_url, tenant, "/v1/chat/completions")
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert choices[0]["delta"]["role"] == "assistant"
    assert choices[-1]["finish_reason"] == "stop"


async def test_an_error_in_the_middle_is_one_event_and_the_end(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    stack.engine.fail_after_tokens = 3
    *chunks, last = await _events(stack, live_url, tenant, "/v1/chat/completions")
    assert json.loads(last)["error"]["code"] == "engine_unavailable"
    assert all(json.loads(c)["choices"][0]["finish_reason"] is None for c in chunks)
    (row,) = await stack.settled(tenant)
    assert (row.outcome, row.amount_nanousd) == ("error", 0)


async def test_a_validation_error_is_plain_json_also_for_a_stream(
    stack: Stack, live_url: str
) -> None:
    tenant = await stack.new_tenant()
    async with httpx.AsyncClient(base_url=live_url) as client:
        response = await client.post(
            "/v1/chat/completions",
            json=stack.chat_body(stream=True, n=0),
            headers=tenant.headers,
        )
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["param"] == "n"


async def test_the_official_client_reads_answers_streams_and_errors(
    stack: Stack, live_url: str
) -> None:
    tenant = await stack.new_tenant()
    async with openai.AsyncOpenAI(
        base_url=f"{live_url}/v1", api_key=tenant.api_key, max_retries=0
    ) as client:
        ask: dict[str, Any] = {
            "model": stack.base_model,
            "messages": [{"role": "user", "content": "hi"}],
        }
        whole = await client.chat.completions.create(**ask)
        text = ""
        async for chunk in await client.chat.completions.create(**ask, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == whole.choices[0].message.content == "Hello, this is the base model."
        assert [model.id async for model in client.models.list()] == [stack.base_model]
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(**{**ask, "model": "nope"})
        assert missing.value.code == "model_not_found"
        stack.engine.fail_after_tokens = 2
        with pytest.raises(openai.APIError):
            async for _ in await client.chat.completions.create(**ask, stream=True):
                pass


async def test_many_streams_at_once_stay_apart(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = lambda request: (str(len(request.token_ids)),) * 5
    stack.engine.token_interval_s = 0.002

    async def stream(length: int) -> str:
        messages = [{"role": "user", "content": "x" * length}]
        *chunks, _ = await _events(
            stack, live_url, tenant, "/v1/chat/completions", messages=messages
        )
        deltas = (json.loads(chunk)["choices"][0]["delta"] for chunk in chunks)
        return "".join(delta.get("content", "") for delta in deltas)

    lengths = range(1, 31)
    texts = await asyncio.gather(*(stream(length) for length in lengths))
    assert texts == [str(length + len("<user>\n")) * 5 for length in lengths]
