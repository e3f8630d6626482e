"""The failure contract: vanished clients, a killed core, a restart."""

import asyncio
import time
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.test_exact_batch import engine_health, held, ledger_amounts
from tests.support.installation import Installation, wait_until

PRICE_INPUT, PRICE_CACHED, PRICE_OUTPUT = 100, 10, 400


def long_stream(client: openai.OpenAI, model: str) -> openai.Stream[Any]:
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Count upwards. Seed {time.time_ns()}."}],
        max_tokens=1500,
        temperature=1,
        stream=True,
    )


def record_of(installation: Installation, request_id: str, timeout_s: float) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        rows = installation.usage_records("acme")
        return next((row for row in rows if row["request_id"] == request_id), None)

    return wait_until(find, timeout_s=timeout_s, what=f"the record of {request_id}")


def amount(row: dict[str, Any]) -> int:
    fresh: int = row["prompt_tokens"] - row["cached_tokens"]
    cached: int = row["cached_tokens"]
    completion: int = row["completion_tokens"]
    return PRICE_INPUT * fresh + PRICE_CACHED * cached + PRICE_OUTPUT * completion


def is_idle(installation: Installation) -> bool:
    health = asyncio.run(engine_health(installation))
    return health.num_running == health.num_waiting == 0


def test_a_client_that_leaves_a_stream_stops_the_work_and_pays_for_what_ran(
    installation: Installation,
) -> None:
    client = installation.client("acme")
    stream = long_stream(client, "style")
    chunks = [next(stream) for _ in range(6)]
    stream.close()
    wait_until(lambda: is_idle(installation), timeout_s=1.5, what="the engine stops the work")
    row = record_of(installation, chunks[0].id, 10)
    assert row["outcome"] == "aborted"
    assert 5 <= row["completion_tokens"] < 1500
    assert row["amount_nanousd"] == amount(row) > 0
    wait_until(lambda: held(installation) == 0, timeout_s=10, what="the hold is settled")


def test_a_client_that_leaves_an_unstreamed_request_stops_the_work(
    installation: Installation,
) -> None:
    key = installation.tenant("acme")["api_key"]
    before = {row["request_id"] for row in installation.usage_records("acme")}
    body = {
        "model": "style",
        "messages": [{"role": "user", "content": "Write a very long story."}],
        "max_tokens": 1500,
    }
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{installation.base_url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(5, read=0.6),
        )
    wait_until(lambda: is_idle(installation), timeout_s=1.5, what="the engine stops the work")

    def new_row() -> dict[str, Any] | None:
        rows = installation.usage_records("acme")
        return next((row for row in rows if row["request_id"] not in before), None)

    assert wait_until(new_row, timeout_s=10, what="one record")["outcome"] == "aborted"


def test_killing_the_core_gives_one_error_and_the_engine_comes_back(
    installation: Installation,
) -> None:
    client = installation.client("acme", max_retries=0)
    stream = long_stream(client, "style")
    first = next(stream)
    for _ in range(4):
        next(stream)
    core = installation.core()
    assert core is not None
    core.kill()
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            pass
    assert caught.value.code == "engine_unavailable"
    answers = wait_until(
        lambda: (
            httpx.get(f"{installation.base_url}/health", timeout=5).status_code == 200
            and (installation.core() or core).pid != core.pid
        ),
        timeout_s=90,
        what="the engine comes back",
    )
    assert answers
    row = record_of(installation, first.id, 10)
    assert (row["outcome"], row["amount_nanousd"]) == ("error", 0)
    assert row["completion_tokens"] >= 4
    assert asyncio.run(ledger_amounts(installation, {first.id})) == (1, 0)
    again = client.chat.completions.create(
        model="style", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
    )
    assert again.choices[0].message.content
    wait_until(lambda: held(installation) == 0, timeout_s=45, what="nothing stays reserved")


def test_a_second_start_keeps_data_and_leaves_no_process_behind(
    installation: Installation,
) -> None:
    records = {row["request_id"] for row in installation.usage_records("acme")}
    tenants = installation.demo["tenants"]
    assert installation.stop() == []
    assert installation.start() < 60
    assert installation.demo["tenants"] == tenants
    assert records <= {row["request_id"] for row in installation.usage_records("acme")}
    client = installation.client("acme")
    answer = client.chat.completions.create(
        model="support", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
    )
    assert answer.choices[0].message.content
