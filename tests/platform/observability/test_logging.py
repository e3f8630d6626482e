"""The log: one JSON object a line, ids on each, and never what a prompt or a key says."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tenora_engine.protocol.messages import GenerateRequest
from tenora_platform.observability.logging import configure_logging
from tests.support.app import Stack


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is logged, by the configuration of a real process."""
    stream = io.StringIO()
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    configure_logging("info", stream)
    yield stream
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def _lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def _access(log: io.StringIO) -> dict[str, Any]:
    (line,) = [x for x in _lines(log) if x["event"] == "http.request_finished"]
    return line


async def test_an_answer_is_one_line_with_ids_and_counts(log: io.StringIO, stack: Stack) -> None:
    tenant = await stack.new_tenant()
    messages = [{"role": "user", "content": "the secret question"}]
    response = await stack.chat(tenant, messages=messages)
    line = _access(log)
    assert line["request_id"] == response.headers["x-request-id"]
    assert line["inference_id"] == response.json()["id"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["tenant_id"] == str(tenant.id)
    assert line["completion_tokens"] == 7
    assert line["duration_ms"] > 0
    for private in ("secret question", "Hello", tenant.api_key):
        assert private not in log.getvalue()


async def test_a_fault_has_its_traceback_in_the_log_alone(log: io.StringIO, stack: Stack) -> None:
    def broken(request: GenerateRequest) -> list[str]:
        raise RuntimeError("inside")

    stack.engine.script = broken
    tenant = await stack.new_tenant()
    messages = [{"role": "user", "content": "the secret question"}]
    response = await stack.chat(tenant, messages=messages)
    (fault,) = [x for x in _lines(log) if x["event"] == "http.unexpected_error"]
    assert "RuntimeError: inside" in fault["exception"]
    assert fault["request_id"] == response.headers["x-request-id"]
    assert "secret question" not in log.getvalue()
    assert "Traceback" not in response.text


@pytest.mark.parametrize("sent", ["abc-123_X.y:z", "a" * 128])
async def test_a_plain_client_id_is_echoed_and_logged(
    log: io.StringIO, stack: Stack, sent: str
) -> None:
    tenant = await stack.new_tenant()
    response = await stack.client.get(
        "/v1/models", headers={**tenant.headers, "x-request-id": sent}
    )
    assert response.headers["x-client-request-id"] == sent
    assert _access(log)["client_request_id"] == sent
    assert response.headers["x-request-id"] != sent


@pytest.mark.parametrize("sent", ["", "a" * 129, "with space", "semi;colon", "x" * 100_000])
async def test_any_other_client_id_is_dropped(log: io.StringIO, stack: Stack, sent: str) -> None:
    tenant = await stack.new_tenant()
    response = await stack.client.get(
        "/v1/models", headers=[*tenant.headers.items(), ("x-request-id", sent)]
    )
    assert response.status_code == 200
    assert "x-client-request-id" not in response.headers
    assert _access(log)["client_request_id"] is None


async def test_probes_are_quiet(log: io.StringIO, stack: Stack) -> None:
    await stack.client.get("/health")
    assert [x for x in _lines(log) if x["event"] == "http.request_finished"] == []


def test_the_standard_librarys_loggers_speak_json_too(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("plain %s", "words")
    (line,) = _lines(log)
    assert (line["event"], line["level"], line["logger"]) == (
        "plain words",
        "warning",
        "uvicorn.error",
    )


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="log level"):
        configure_logging("loud")
