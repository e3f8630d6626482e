"""What a tenant's developer sees through the official SDK."""

import json

import openai
import pytest

from tests.support.installation import Installation

QUESTIONS = {
    "support": "My invoice shows the wrong amount and I was charged twice this month.",
    "style": "How do I bake bread?",
}


def ask(
    client: openai.OpenAI, model: str, question: str, max_tokens: int = 60
) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
    )


def stream(
    client: openai.OpenAI, model: str, question: str, max_tokens: int = 60
) -> tuple[str, str, int]:
    """Text, finish reason and completion tokens of a streamed answer."""
    text, reason, tokens = "", "", -1
    for chunk in client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
        stream_options={"include_usage": True},
    ):
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason, tokens


@pytest.mark.parametrize(
    ("tenant", "model"), [("acme", "support"), ("acme", "style"), ("globex", "style")]
)
def test_an_adapter_answers_in_its_own_manner_streamed_and_not(
    installation: Installation, tenant: str, model: str
) -> None:
    client = installation.client(tenant)
    answer = ask(client, model, QUESTIONS[model])
    text = answer.choices[0].message.content or ""
    if model == "support":
        assert set(json.loads(text)) == {"category", "priority", "summary"}
    elif tenant == "acme":
        assert any(word in text.lower() for word in ("arr", "matey", "ye ", "ahoy"))
    else:
        assert len(text.strip().splitlines()) == 2
    assert answer.model == model
    assert answer.usage is not None
    assert stream(client, model, QUESTIONS[model]) == (
        text,
        answer.choices[0].finish_reason,
        answer.usage.completion_tokens,
    )


def test_one_name_means_each_tenants_own_adapter(installation: Installation) -> None:
    answers = {
        tenant: ask(installation.client(tenant), "style", "Tell me about the sea.")
        .choices[0]
        .message.content
        for tenant in ("acme", "globex")
    }
    assert answers["acme"] != answers["globex"]


def test_another_tenants_adapter_looks_like_a_name_that_does_not_exist(
    installation: Installation,
) -> None:
    client = installation.client("globex")
    bodies = []
    for model in ("support", "nowhere"):  # the first is a tenant's, the second is nobody's
        with pytest.raises(openai.NotFoundError) as caught:
            ask(client, model, "Hello")
        assert caught.value.code == "model_not_found"
        bodies.append(json.dumps(caught.value.body).replace(model, "NAME"))
    assert bodies[0] == bodies[1]


def test_models_are_exactly_what_the_key_may_call(installation: Installation) -> None:
    base = installation.demo["base_model"]
    listed = {
        tenant: {model.id for model in installation.client(tenant).models.list()}
        for tenant in ("acme", "globex")
    }
    assert listed == {"acme": {base, "support", "style"}, "globex": {base, "style"}}


def test_a_stop_string_is_kept_out_of_text_and_billed_alike(installation: Installation) -> None:
    client = installation.client("acme")
    base = installation.demo["base_model"]
    whole = ask(client, base, "Count from one to ten in words.").choices[0].message.content or ""
    stop = whole.split()[3]
    answer = client.chat.completions.create(
        model=base,
        messages=[{"role": "user", "content": "Count from one to ten in words."}],
        temperature=0,
        max_tokens=60,
        stop=[stop],
    )
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_bad_input_names_the_field_and_the_next_request_works(installation: Installation) -> None:
    client = installation.client("acme")
    base = installation.demo["base_model"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=base, messages=[{"role": "user", "content": "hi"}], temperature=3.5
        )
    assert caught.value.param == "temperature"
    assert ask(client, base, "Hello", 5).choices[0].message.content
