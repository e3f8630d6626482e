"""The front's logic over a scripted core: counts, losses, health, refusals, shutdown."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tenora_engine.core.messages import SequenceOutput
from tenora_engine.front.progress import StallLimits
from tenora_engine.front.service import EngineFront
from tenora_engine.protocol.errors import (
    EngineError,
    EngineOverloadedError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tenora_engine.protocol.messages import (
    AdapterRef,
    ChatMessage,
    Delta,
    Finished,
    GenerateEvent,
    PrepareRequest,
    SamplingParams,
)
from tests.support.front import (
    collect,
    front_config,
    generate_request,
    records_of,
    running_front,
    until,
    until_recorded,
    until_serving,
)
from tests.support.scripted_core import ScriptedCore, ScriptedLoop
from tests.support.tiny_tokenizer import END_OF_TEXT, IM_END, byte_ids


def core_saying(folder: Path, text: str, **changes: float) -> ScriptedCore:
    loop = ScriptedLoop(script=lambda _: byte_ids(text), **changes)  # type: ignore[arg-type]
    return ScriptedCore(folder, loop)


async def test_split_character_arrives_whole(folder: Path) -> None:
    async with running_front(front_config(folder), core_saying(folder, "a\U0001f600b")) as front:
        deltas = [e async for e in front.generate(generate_request("r")) if isinstance(e, Delta)]
    assert "".join(delta.text for delta in deltas) == "a\U0001f600b"
    assert all("\ufffd" not in delta.text for delta in deltas)


async def test_cut_character_is_one_replacement_and_a_length(folder: Path) -> None:
    async with running_front(front_config(folder), core_saying(folder, "\U0001f600")) as front:
        text, end = await collect(front, generate_request("r", max_tokens=2))
    assert (text, end.reason, end.usage.completion_tokens) == ("\ufffd", "length", 2)


async def test_core_gets_all_end_tokens_and_no_text(folder: Path) -> None:
    core = core_saying(folder, "x")
    async with running_front(front_config(folder), core) as front:
        sampling = SamplingParams(temperature=0.5, top_p=0.9, seed=-1, stop=("zz",))
        request = generate_request("r", sampling=sampling, fairness_key="f", weight=2.0, priority=3)
        await collect(front, request)
    (sent,) = core.adds()
    assert sent.stop_token_ids == (END_OF_TEXT, IM_END)
    assert (sent.temperature, sent.top_p, sent.fairness_key) == (0.5, 0.9, "f")
    assert (sent.weight, sent.priority, sent.max_tokens) == (2.0, 3, 100)
    assert 0 <= sent.seed < 1 << 63


async def test_requests_without_a_seed_differ(folder: Path) -> None:
    core = core_saying(folder, "x")
    async with running_front(front_config(folder), core) as front:
        for name in ("a", "b"):
            await collect(front, generate_request(name))
    first, second = core.adds()
    assert first.seed != second.seed


async def test_stop_string_aborts_the_core_once_and_ignores_later_tokens(folder: Path) -> None:
    core = core_saying(folder, "one STOP two three", tokens_per_step=7)
    async with running_front(front_config(folder), core) as front:
        sampling = SamplingParams(temperature=0.0, stop=("STOP",))
        text, end = await collect(front, generate_request("r", sampling=sampling))
        assert (text, end.usage.completion_tokens) == ("one ", len("one STOP"))
        record = (await records_of(front))["r"]
        assert record.usage == end.usage
        await until(lambda: core.aborts() == ["r"])


async def test_normal_ends_send_no_abort(folder: Path) -> None:
    core = core_saying(folder, "x")
    async with running_front(front_config(folder), core) as front:
        for index in range(3):
            await collect(front, generate_request(f"r{index}"))
        await asyncio.sleep(0.05)
    assert core.aborts() == []


async def test_closing_sends_exactly_one_abort(folder: Path) -> None:
    core = core_saying(folder, "x" * 90, step_interval_s=0.01)
    async with running_front(front_config(folder), core) as front:
        events = front.generate(generate_request("r"))
        await anext(events)
        await events.aclose()
        await until(lambda: core.aborts() == ["r"])
        await asyncio.sleep(0.05)
    assert core.aborts() == ["r"]


async def test_repeated_prompt_reports_cached_tokens_within_its_scope_only(folder: Path) -> None:
    async with running_front(front_config(folder), core_saying(folder, "x")) as front:

        async def cached(name: str, scope: bytes, adapter: AdapterRef | None = None) -> int:
            request = generate_request(name, cache_scope=scope, adapter=adapter)
            return (await collect(front, request))[1].usage.cached_prompt_tokens

        assert await cached("a", b"t1") == 0
        assert await cached("b", b"t1") == len("prompt") - 1
        assert await cached("c", b"t2") == 0
        assert await cached("d", b"t1", AdapterRef(digest="aa")) == 0
        assert (await front.purge_scope(b"t1")).num_blocks_zeroed == 2
        assert await cached("e", b"t1") == 0
        assert await cached("f", b"t2") == len("prompt") - 1


async def test_finished_leaves_only_after_its_record_is_durable(folder: Path) -> None:
    """The last text and `Finished` come after the journal's commit, in any order of events."""
    async with running_front(front_config(folder), core_saying(folder, "ab")) as front:
        journal = front._journal
        order: list[str] = []
        finish = journal.finish

        def watched(record: object) -> "asyncio.Future[int]":
            done = finish(record)  # type: ignore[arg-type]
            done.add_done_callback(lambda _: order.append("durable"))
            return done

        journal.finish = watched  # type: ignore[method-assign]
        async for event in front.generate(generate_request("r", max_tokens=2)):
            order += [event.text if isinstance(event, Delta) else "finished"]
    assert order == ["a", "durable", "b", "finished"]


async def test_lost_core_fails_its_requests_and_the_next_life_serves(folder: Path) -> None:
    core = core_saying(folder, "x" * 90, step_interval_s=0.005)
    async with running_front(front_config(folder), core) as front:
        events = front.generate(generate_request("r"))
        await anext(events)
        core.kill()
        assert not (await front.health()).serving
        with pytest.raises(EngineUnavailableError):
            await collect(front, generate_request("while-down"))
        with pytest.raises(EngineUnavailableError):
            [event async for event in events]
        record = await until_recorded(front, "r")
        assert (record.outcome, record.error_code) == ("error", "engine_unavailable")
        assert record.usage.completion_tokens >= 1
        await core.revive()
        await until_serving(front)
        await collect(front, generate_request("next", max_tokens=2))
        assert set(await records_of(front)) == {"r", "next"}


async def test_frozen_core_is_not_serving_and_then_killed(folder: Path) -> None:
    core = core_saying(folder, "x" * 90, step_interval_s=0.01)
    limits = StallLimits(idle_s=1.0, busy_s=1.0, kill_s=2.0)
    async with running_front(front_config(folder), core, stall_limits=limits) as front:
        events = front.generate(generate_request("r"))
        await anext(events)
        core.loop.is_frozen = True
        with pytest.raises(EngineUnavailableError):
            [event async for event in events]
        health = await front.health()
        assert (health.serving, health.reason) == (False, "Killed by the test.")


async def test_busy_core_stays_healthy(folder: Path) -> None:
    core = core_saying(folder, "xxxx", step_interval_s=0.8)
    limits = StallLimits(idle_s=0.0, busy_s=5.0, kill_s=60.0)
    async with running_front(front_config(folder), core, stall_limits=limits) as front:
        task = asyncio.create_task(collect(front, generate_request("r")))
        await asyncio.sleep(0.1)
        for _ in range(10):
            assert (await front.health()).serving
            await asyncio.sleep(0.2)
        await task


async def test_deadline_ends_a_running_request(folder: Path) -> None:
    core = core_saying(folder, "x" * 90, step_interval_s=0.02)
    async with running_front(front_config(folder), core) as front:
        deadline = int(time.time() * 1000) + 200
        with pytest.raises(EngineOverloadedError) as caught:
            await collect(front, generate_request("r", deadline_at_ms=deadline))
        assert caught.value.code == "deadline_exceeded"
        record = (await records_of(front))["r"]
        assert (record.outcome, record.error_code) == ("error", "deadline_exceeded")
        await until(lambda: core.aborts() == ["r"])


async def test_full_queue_and_full_backlog_refuse_without_a_record(folder: Path) -> None:
    core = core_saying(folder, "x" * 90, step_interval_s=0.02)
    config = front_config(folder, max_running_sequences=1, max_waiting_sequences=0)
    async with running_front(config, core, max_journal_backlog=1) as front:
        events = front.generate(generate_request("first"))
        await anext(events)
        with pytest.raises(EngineOverloadedError):
            await collect(front, generate_request("second"))
        await events.aclose()
        await until_recorded(front, "first")
        with pytest.raises(EngineOverloadedError) as caught:
            await collect(front, generate_request("third"))
        assert caught.value.code == "usage_backlog_full"
        assert not (await front.health()).serving
        await front.acknowledge_usage(up_to_seq=10)
        assert (await front.health()).serving
        assert core.adds()[1:] == []


async def test_shutdown_records_running_requests(folder: Path) -> None:
    core = core_saying(folder, "x" * 90, step_interval_s=0.01)
    config = front_config(folder)
    async with running_front(config, core) as front:
        events = front.generate(generate_request("r"))
        await anext(events)
        await front.close()
        with pytest.raises(EngineUnavailableError) as caught:
            [event async for event in events]
        assert caught.value.code == "shutdown"
    async with running_front(config, core_saying(folder, "y")) as front:
        record = (await records_of(front))["r"]
        assert (record.outcome, record.error_code, record.estimated) == ("error", "shutdown", False)


async def test_long_request_is_checkpointed(folder: Path) -> None:
    core = core_saying(folder, "x" * 300, step_interval_s=0.0005)
    config = front_config(folder)
    async with running_front(config, core) as front:
        events = front.generate(generate_request("r", max_tokens=300))
        count = 0
        while count < 200:
            event = await anext(events)
            assert isinstance(event, Delta)
            count += len(event.token_ids)
        noted = await _noted_tokens(front, "r")
        await events.aclose()
    assert 128 <= noted <= 300


async def _noted_tokens(front: EngineFront, request_id: str) -> int:
    """Completion tokens of the note that the next life would turn into a record."""
    import msgspec

    from tenora_engine.protocol.messages import UsageRecord

    rows = await front._journal._file.read(
        lambda c: c.execute(
            "select record from running where request_id = ?", (request_id,)
        ).fetchall()
    )
    return msgspec.msgpack.decode(rows[0][0], type=UsageRecord).usage.completion_tokens


async def test_error_of_one_sequence_disturbs_no_other(folder: Path) -> None:
    core = core_saying(folder, "hello", step_interval_s=0.005)
    async with running_front(front_config(folder), core) as front:
        other = asyncio.create_task(collect(front, generate_request("other")))
        bad = generate_request("bad", adapter=AdapterRef(digest="bad"))
        task = asyncio.create_task(collect(front, bad))
        await until(lambda: len(core.adds()) == 2)
        front._generations.advance([_failed("bad")])
        with pytest.raises(EngineError) as caught:
            await task
        assert caught.value.code == "adapter_unavailable"
        assert (await other)[0] == "hello"
        assert (await records_of(front))["bad"].error_code == "adapter_unavailable"


def _failed(request_id: str) -> SequenceOutput:
    from tenora_engine.protocol.errors import AdapterUnavailableError, ErrorPayload

    error = ErrorPayload.of(AdapterUnavailableError("The adapter is damaged."))
    return SequenceOutput(request_id=request_id, error=error)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"token_ids": (1, 10**6)}, "prompt"),
        ({"token_ids": (-1,)}, "prompt"),
        ({"weight": float("nan")}, "weight"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(temperature=float("inf"))}, "temperature"),
        ({"sampling": SamplingParams(top_p=0.0)}, "top_p"),
        ({"sampling": SamplingParams(stop=("a", ""))}, "stop"),
    ],
)
async def test_values_that_would_break_the_core_never_reach_it(
    folder: Path, changes: dict[str, Any], param: str
) -> None:
    core = core_saying(folder, "x")
    async with running_front(front_config(folder), core) as front:
        with pytest.raises(InvalidRequestError) as caught:
            await collect(front, generate_request("r", **changes))
        assert caught.value.param == param
        assert await records_of(front) == {}
    assert core.adds() == []


async def test_request_larger_than_the_kv_pool_is_refused(folder: Path) -> None:
    core = ScriptedCore(folder, ScriptedLoop(context_length=1 << 20))
    async with running_front(front_config(folder), core) as front:
        with pytest.raises(InvalidRequestError, match="4096 tokens"):
            await collect(front, generate_request("r", max_tokens=4096))


async def test_used_id_is_refused_even_after_its_end(folder: Path) -> None:
    core = core_saying(folder, "x")
    async with running_front(front_config(folder), core) as front:
        await collect(front, generate_request("r"))
        with pytest.raises(InvalidRequestError):
            await collect(front, generate_request("r"))
        assert len(await records_of(front)) == 1


async def test_lone_surrogate_is_refused(folder: Path) -> None:
    async with running_front(front_config(folder), core_saying(folder, "x")) as front:
        for request in (
            PrepareRequest(text="a\ud800"),
            PrepareRequest(messages=(ChatMessage(role="user", content="\udfff"),)),
        ):
            with pytest.raises(InvalidRequestError, match="surrogate"):
                await front.prepare(request)


async def test_chat_prompt_reaches_the_core_as_prepared(folder: Path) -> None:
    core = core_saying(folder, "x")
    async with running_front(front_config(folder), core) as front:
        messages = (ChatMessage(role="user", content="hi"),)
        prepared = await front.prepare(PrepareRequest(messages=messages))
        request = generate_request(
            "r", token_ids=prepared.token_ids, template_version=prepared.template_version
        )
        _, end = await collect(front, request)
    assert core.adds()[0].token_ids == prepared.token_ids
    assert end.identity.template_version == prepared.template_version
    assert end.usage.prompt_tokens == len(prepared.token_ids)


async def test_events_of_one_step_reach_a_sink_in_one_turn(folder: Path) -> None:
    """`submit` needs no task: events come as calls, all of a step before anything else runs."""
    core = core_saying(folder, "ab", tokens_per_step=3)
    async with running_front(front_config(folder), core) as front:
        events: list[GenerateEvent | EngineError] = []
        front.submit(generate_request("r"), events.append)
        await until(lambda: bool(events) and isinstance(events[-1], Finished))
    assert [type(event) for event in events] == [Delta, Finished]


async def test_broken_model_folder_fails_the_start(folder: Path) -> None:
    config = front_config(folder)
    (config.model_dir / "tokenizer.json").write_text(json.dumps({"model": None}))
    front = EngineFront(config, core_saying(folder, "x"))
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged"):
        await front.start()
    await front.close()
