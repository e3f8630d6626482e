"""What every `EngineClient` guarantees. Ids of prompts are bytes here, valid in every engine."""

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.errors import (
    ContextLengthError,
    EngineOverloadedError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tenora_engine.protocol.messages import (
    AdapterRef,
    ChatMessage,
    Delta,
    Finished,
    InspectRequest,
    PrepareRequest,
    SamplingParams,
)
from tests.contract.conftest import Harness
from tests.support.front import collect, generate_request, records_of, until_recorded

Scripter = Callable[[str], None]


def stopping_at(*stops: str) -> SamplingParams:
    return SamplingParams(temperature=0.0, stop=stops)


# Facts


async def test_serves_and_describes_itself(engine: EngineClient) -> None:
    health, info = await engine.health(), await engine.describe()
    assert health.serving
    assert (health.num_running, health.journal_backlog) == (0, 0)
    assert info.context_length > 0
    assert info.replica_id == (await engine.pull_usage(limit=1)).replica_id


# Prompts


async def test_prepares_messages_text_and_ids(engine: EngineClient) -> None:
    chat = await engine.prepare(PrepareRequest(messages=(ChatMessage(role="user", content="hi"),)))
    text = await engine.prepare(PrepareRequest(text="hi"))
    ids = await engine.prepare(PrepareRequest(token_ids=(1, 2, 3)))
    assert len(chat.token_ids) > len(text.token_ids) > 0
    assert (text.template_version, ids.template_version) == ("text", "token_ids")
    assert chat.template_version not in {"text", "token_ids"}
    assert ids.token_ids == (1, 2, 3)


@pytest.mark.parametrize(
    "request_", [PrepareRequest(messages=()), PrepareRequest(text=""), PrepareRequest(token_ids=())]
)
async def test_empty_prompt_is_refused(engine: EngineClient, request_: PrepareRequest) -> None:
    with pytest.raises(InvalidRequestError):
        await engine.prepare(request_)


async def test_prompt_without_room_for_output_is_refused(engine: EngineClient) -> None:
    window = (await engine.describe()).context_length
    fits = await engine.prepare(PrepareRequest(token_ids=(1,) * (window - 1)))
    assert len(fits.token_ids) == window - 1
    with pytest.raises(ContextLengthError, match=str(window)):
        await engine.prepare(PrepareRequest(token_ids=(1,) * window))


# One generation


async def test_deltas_then_one_finished(engine: EngineClient, script: Scripter) -> None:
    script("Hello!")
    text, end = await collect(engine, generate_request("r1"))
    assert text == "Hello!"
    assert end.reason == "stop"
    assert end.usage.prompt_tokens == len("prompt")
    assert end.usage.completion_tokens == len("Hello!") + 1


async def test_every_token_is_in_some_delta(engine: EngineClient, script: Scripter) -> None:
    script("Hello!")
    ids: list[int] = []
    async for event in engine.generate(generate_request("r1")):
        if isinstance(event, Delta):
            ids.extend(event.token_ids)
    assert len(ids) == len("Hello!") + 1


@pytest.mark.parametrize(
    ("answer", "max_tokens", "expected"),
    [
        ("abcdef", 3, ("abc", "length", 3)),
        ("abc", 4, ("abc", "stop", 4)),
        ("abc", 3, ("abc", "length", 3)),
        ("", 5, ("", "stop", 1)),
    ],
)
async def test_reason_and_count_at_the_limit(
    engine: EngineClient,
    script: Scripter,
    answer: str,
    max_tokens: int,
    expected: tuple[str, str, int],
) -> None:
    script(answer)
    text, end = await collect(engine, generate_request("r1", max_tokens=max_tokens))
    assert (text, end.reason, end.usage.completion_tokens) == expected


@pytest.mark.parametrize(
    ("stops", "expected", "tokens"),
    [
        (("DEFGHIJ",), "abc", 10),
        (("STOP", "STOP NOW"), "abcDEFGHIJ ", 15),
        (("zzz",), "abcDEFGHIJ STOP NOW!", 21),
        (("!x", "W!"), "abcDEFGHIJ STOP NO", 20),
    ],
)
async def test_stop_string_cuts_and_counts(
    engine: EngineClient, script: Scripter, stops: tuple[str, ...], expected: str, tokens: int
) -> None:
    script("abcDEFGHIJ STOP NOW!")
    request = generate_request("r1", sampling=stopping_at(*stops))
    text, end = await collect(engine, request)
    assert (text, end.reason, end.usage.completion_tokens) == (expected, "stop", tokens)


async def test_stop_string_on_the_last_allowed_token_is_a_stop(
    engine: EngineClient, script: Scripter
) -> None:
    script("abcdef")
    request = generate_request("r1", max_tokens=3, sampling=stopping_at("c"))
    text, end = await collect(engine, request)
    assert (text, end.reason, end.usage.completion_tokens) == ("ab", "stop", 3)


async def test_held_text_of_a_false_stop_is_not_lost_at_the_limit(
    engine: EngineClient, script: Scripter
) -> None:
    script("the test")
    request = generate_request("r1", max_tokens=6, sampling=stopping_at("test"))
    assert (await collect(engine, request))[0] == "the te"


# Usage


async def test_record_is_there_when_finished_arrives(
    engine: EngineClient, script: Scripter
) -> None:
    script("four")
    request = generate_request("r1", adapter=AdapterRef(digest="cd" * 32))
    async for event in engine.generate(request):
        if isinstance(event, Finished):
            record = (await records_of(engine))["r1"]
            end = event
    assert (record.outcome, record.error_code, record.estimated) == ("stop", None, False)
    assert record.usage == end.usage
    assert record.usage.adapter_digest == "cd" * 32
    assert record.attribution == b"who:r1"
    assert record.identity == end.identity
    assert record.execution_hash == end.identity.execution_hash()
    assert record.started_at_ms <= record.completed_at_ms


async def test_records_come_in_order_until_acknowledged(engine: EngineClient) -> None:
    for name in ("r1", "r2", "r3"):
        await collect(engine, generate_request(name, max_tokens=1))
    first = await engine.pull_usage(limit=2)
    assert [record.request_id for record in first.records] == ["r1", "r2"]
    assert await engine.pull_usage(limit=2) == first
    await engine.acknowledge_usage(up_to_seq=first.records[1].seq)
    await engine.acknowledge_usage(up_to_seq=first.records[1].seq)
    rest = (await engine.pull_usage(limit=10)).records
    assert [record.request_id for record in rest] == ["r3"]
    assert (await engine.health()).journal_backlog == 1
    await engine.acknowledge_usage(up_to_seq=rest[0].seq)
    await collect(engine, generate_request("r4", max_tokens=1))
    assert (await engine.pull_usage(limit=10)).records[0].seq > rest[0].seq


# Leaving early


async def test_closing_aborts_and_records_what_was_generated(
    harness: Harness, engine: EngineClient, script: Scripter
) -> None:
    script("x" * 90)
    harness.slow_down(0.02)
    events = engine.generate(generate_request("r1"))
    delivered = 0
    async for event in events:
        assert isinstance(event, Delta)
        delivered += len(event.token_ids)
        if delivered >= 3:
            break
    await events.aclose()
    record = await until_recorded(engine, "r1")
    assert record.outcome == "aborted"
    assert record.usage.prompt_tokens == len("prompt")
    assert delivered <= record.usage.completion_tokens < 90


async def test_cancelled_before_the_first_delta(
    harness: Harness, engine: EngineClient, script: Scripter
) -> None:
    script("slow")
    harness.slow_down(0.5)
    task = asyncio.create_task(collect(engine, generate_request("r1")))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await until_recorded(engine, "r1")
    assert (record.outcome, record.usage.completion_tokens) == ("aborted", 0)


async def test_many_readers_leaving_at_any_point_leave_nothing_behind(
    harness: Harness, engine: EngineClient, script: Scripter
) -> None:
    script("x" * 60)
    harness.slow_down(0.002)
    chance = random.Random(7)

    async def leave_early(name: str) -> None:
        task = asyncio.create_task(collect(engine, generate_request(name)))
        await asyncio.sleep(chance.random() * 0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(leave_early(f"r{index}") for index in range(60)))
    harness.slow_down(0)
    text, _ = await collect(engine, generate_request("last"))
    assert text == "x" * 60
    async with asyncio.timeout(5):
        while (await engine.health()).num_running:  # noqa: ASYNC110 - seen by asking only
            await asyncio.sleep(0.02)
    records = await records_of(engine)
    assert {record.outcome for record in records.values()} <= {"aborted", "stop"}


# Refusals and faults


async def test_running_id_is_refused_and_the_first_undisturbed(
    harness: Harness, engine: EngineClient, script: Scripter
) -> None:
    script("first")
    harness.slow_down(0.02)
    first = engine.generate(generate_request("same"))
    event = await anext(first)
    with pytest.raises(InvalidRequestError):
        await collect(engine, generate_request("same"))
    texts = [event.text] if isinstance(event, Delta) else []
    texts += [event.text async for event in first if isinstance(event, Delta)]
    assert "".join(texts) == "first"
    assert list(await records_of(engine)) == ["same"]


async def test_refusals_leave_no_record(engine: EngineClient) -> None:
    window = (await engine.describe()).context_length
    too_long = generate_request("r1", max_tokens=window)
    with pytest.raises(ContextLengthError):
        await collect(engine, too_long)
    with pytest.raises(InvalidRequestError):
        await collect(engine, generate_request("r2", token_ids=()))
    assert await records_of(engine) == {}


async def test_past_deadline_is_refused(engine: EngineClient) -> None:
    past = int(time.time() * 1000) - 1
    with pytest.raises(EngineOverloadedError) as caught:
        await collect(engine, generate_request("r1", deadline_at_ms=past))
    assert caught.value.code == "deadline_exceeded"


async def test_lost_request_raises_and_is_recorded(
    engine: EngineClient, script: Scripter, lose_after: Callable[[int], None]
) -> None:
    script("abcdef")
    lose_after(3)
    texts: list[str] = []
    with pytest.raises(EngineUnavailableError):  # noqa: PT012 - what came before counts too
        async for event in engine.generate(generate_request("r1")):
            assert isinstance(event, Delta)
            texts.append(event.text)
    record = (await records_of(engine))["r1"]
    assert "".join(texts) == "abc"
    assert (record.outcome, record.error_code) == ("error", "engine_unavailable")
    assert record.usage.completion_tokens == 3


# Company


async def test_many_at_once_get_their_own_answers(engine: EngineClient) -> None:
    async def run(index: int) -> int:
        _, end = await collect(engine, generate_request(f"r{index}", max_tokens=1 + index % 5))
        return end.usage.completion_tokens

    counts = await asyncio.gather(*(run(index) for index in range(40)))
    assert counts == [1 + index % 5 for index in range(40)]
    records = await records_of(engine)
    assert {name: record.usage.completion_tokens for name, record in records.items()} == {
        f"r{index}": count for index, count in enumerate(counts)
    }


# Adapters and cache


async def test_accepted_upload_can_be_probed_and_seen(engine: EngineClient) -> None:
    report = await engine.inspect_adapter(InspectRequest(prefix="incoming/1"))
    assert report.ref is not None
    probe = await engine.probe_adapter(report.ref)
    assert probe.ref == report.ref
    assert probe.finite
    assert report.ref.digest in {state.digest for state in await engine.adapter_states()}


async def test_purge_gives_a_receipt(engine: EngineClient) -> None:
    await collect(engine, generate_request("r1", cache_scope=b"tenant", max_tokens=1))
    receipt = await engine.purge_scope(b"tenant")
    assert receipt.num_blocks_zeroed >= 0
    assert receipt.completed_at_ms > 0


async def test_health_never_raises_even_when_closed(engine: EngineClient) -> None:
    await engine.close()
    await engine.health()
