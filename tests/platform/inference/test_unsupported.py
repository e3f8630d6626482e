"""Known fields that are not served: neutral values pass, effective ones are refused by name."""

import json
from typing import Any

import pytest

from tenora_platform.errors import UnsupportedParameter
from tenora_platform.http.bodies import decode_body
from tenora_platform.inference.openai_schemas import ChatRequest, CompletionRequest
from tenora_platform.inference.unsupported import CHAT, TEXT

_EFFECTIVE: dict[str, list[Any]] = {
    "n": [0, -1, 2, 10**19, True, 1.0, "1"],
    "logprobs": [True, 5, 0],
    "top_logprobs": [1, 21, -1, False],
    "logit_bias": [{"50256": -100}],
    "presence_penalty": [0.5, -2, 3, "0"],
    "frequency_penalty": [1, 3],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, "text"],
    "tools": [[{"type": "function"}]],
    "tool_choice": ["required", {"type": "function"}],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "service_tier": ["flex", "priority"],
    "modalities": [["text", "audio"]],
    "audio": [{"voice": "x"}],
    "prediction": [{"type": "content", "content": "x"}],
    "reasoning_effort": ["low", "high"],
    "verbosity": ["low"],
    "web_search_options": [{}],
    "chat_template": ["{{ messages }}", ""],
    "chat_template_kwargs": [{"x": 1}],
    "top_k": [40],
    "min_p": [0.1],
    "best_of": [2],
    "echo": [True],
    "suffix": ["x"],
}


def _body(target: type[Any], **fields: Any) -> bytes:
    prompt = "messages" if target is ChatRequest else "prompt"
    value = [{"role": "user", "content": "x"}] if target is ChatRequest else "x"
    return json.dumps({"model": "m", prompt: value, **fields}).encode()


def _cases(effective: bool) -> list[Any]:
    cases = []
    for target, table in ((ChatRequest, CHAT), (CompletionRequest, TEXT)):
        for name, neutral in table.items():
            values = _EFFECTIVE.get(name, []) if effective else [None, *neutral]
            cases += [pytest.param(target, name, v, id=f"{name}={v!r}"[:40]) for v in values]
    return cases


@pytest.mark.parametrize(("target", "name", "value"), _cases(effective=False))
def test_a_neutral_value_passes(target: type[Any], name: str, value: Any) -> None:
    decode_body(_body(target, **{name: value}), target)


@pytest.mark.parametrize(("target", "name", "value"), _cases(effective=True))
def test_an_effective_value_is_refused_by_name(target: type[Any], name: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameter) as refusal:
        decode_body(_body(target, **{name: value}), target)
    assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")


def test_a_template_nested_elsewhere_is_an_unknown_field_and_ignored() -> None:
    body = _body(ChatRequest, extra_body={"chat_template": "{{ 1 }}"})
    assert not hasattr(decode_body(body, ChatRequest), "extra_body")
