"""POST /v1/completions: text and token prompts, whole."""

from typing import Any

import pytest

from tests.support.app import Stack, TestTenant


async def _complete(stack: Stack, tenant: TestTenant, **fields: Any) -> Any:
    body = {"model": stack.base_model, "prompt": "once", "max_tokens": 16, **fields}
    return await stack.client.post("/v1/completions", json=body, headers=tenant.headers)


async def test_answers_in_openai_shape(stack: Stack) -> None:
    response = await _complete(stack, await stack.new_tenant())
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "text": "Hello, this is the base model.",
            "finish_reason": "stop",
            "index": 0,
            "logprobs": None,
        }
    ]
    assert body["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
async def test_token_ids_reach_the_engine_unchanged(stack: Stack, prompt: Any) -> None:
    response = await _complete(stack, await stack.new_tenant(), prompt=prompt)
    assert response.status_code == 200
    assert stack.engine.accepted[0].token_ids == (1, 2, 3)
    assert stack.engine.accepted[0].template_version == "token_ids"


async def test_several_prompts_are_unsupported(stack: Stack) -> None:
    response = await _complete(stack, await stack.new_tenant(), prompt=["a", "b"])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_parameter"
    assert response.json()["error"]["param"] == "prompt"


async def test_a_prompt_that_fills_the_window_names_the_prompt(stack: Stack) -> None:
    response = await _complete(stack, await stack.new_tenant(), prompt="x" * 4000)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
