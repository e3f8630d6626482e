"""One error tree, two renderings with the same code and sentence."""

import pytest

from tenora_platform.errors import (
    InvalidInput,
    ModelNotFound,
    PlatformError,
    ServiceUnavailable,
    UnprocessableContent,
    openai_body,
    problem_body,
)


def _tree(cls: type[PlatformError]) -> list[type[PlatformError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _tree(child))]


def test_openai_body_always_has_its_four_keys() -> None:
    body = openai_body(PlatformError())
    assert set(body["error"]) == {"message", "type", "param", "code"}


def test_both_renderings_tell_the_same_story() -> None:
    error = InvalidInput("no good", code="bad", param="stop")
    problem = problem_body(error, request_id="r1")
    assert problem["detail"] == openai_body(error)["error"]["message"] == "no good"
    assert problem["code"] == openai_body(error)["error"]["code"] == "bad"
    assert (problem["status"], problem["title"], problem["request_id"]) == (
        400,
        "Bad Request",
        "r1",
    )


def test_details_cannot_replace_standard_members() -> None:
    error = UnprocessableContent("m", details={"message": "forged", "problems": [1]})
    assert openai_body(error)["error"]["message"] == "m"
    assert openai_body(error)["error"]["problems"] == [1]


def test_every_default_message_is_a_sentence_without_secrets() -> None:
    for kind in _tree(PlatformError):
        assert kind.default_message.endswith(".")


def test_model_not_found_shows_only_a_short_printable_part_of_what_was_sent() -> None:
    message = ModelNotFound("x\n\x1b[31m" + "y" * 500).message
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 300


@pytest.mark.parametrize("seconds", [0, -5, 3])
def test_unavailable_always_says_when_to_come_back(seconds: int) -> None:
    error = ServiceUnavailable(retry_after_s=seconds)
    assert int(error.headers["retry-after"]) >= 1
