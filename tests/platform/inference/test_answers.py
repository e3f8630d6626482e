"""Streams that wait long for their first token begin without it, and close what they hold."""

import asyncio

from tenora_engine.protocol.messages import (
    Delta,
    EngineInfo,
    ExecutionIdentity,
    Finished,
    PreparedPrompt,
    PrepareRequest,
    SamplingParams,
    Timings,
    Usage,
)
from tenora_platform.adapters.schemas import ResolvedModel
from tenora_platform.auth.principal import Principal
from tenora_platform.auth.scope import mint
from tenora_platform.billing.rating import Price
from tenora_platform.errors import ServiceUnavailable
from tenora_platform.inference.admission import Admission, Plan
from tenora_platform.inference.answers import Events, streamed_answer
from tenora_platform.inference.parsing import Call
from tenora_platform.inference.sse import EventStream
from tenora_platform.kit.clock import SystemClock
from tenora_platform.kit.ids import new_id
from tenora_platform.observability.request_context import Access
from tenora_platform.quotas.reservation import Reservation

_NOW = SystemClock().now()
_FINISHED = Finished(
    reason="stop",
    usage=Usage(prompt_tokens=1, completion_tokens=2),
    timings=Timings(),
    identity=ExecutionIdentity(
        model_digest="m",
        tokenizer_digest="t",
        template_version="v",
        adapter_digest=None,
        engine_version="1",
        kernel_backend="k",
        weight_dtype="f",
        kv_dtype="f",
        attention_backend="a",
        topology="1",
        prefix_cache="off",
        sampling=SamplingParams(),
    ),
)


def _admission() -> Admission:
    tenant_id = new_id()
    plan = Plan(
        request_id="chatcmpl-1",
        principal=Principal(mint(tenant_id), new_id(), new_id(), frozenset(), "UTC", ()),
        call=Call(
            endpoint="chat.completions",
            model="m",
            prompt=PrepareRequest(text="x"),
            sampling=SamplingParams(),
            max_tokens=2,
            is_streamed=True,
            include_usage=False,
        ),
        info=EngineInfo(
            replica_id="r",
            engine_version="1",
            base_model="m",
            model_digest="d",
            context_length=64,
            vocab_size=8,
            max_lora_rank=8,
            kernel_backend="k",
            weight_dtype="f",
        ),
        resolved=ResolvedModel(model="m"),
        prompt=PreparedPrompt(token_ids=(1,), template_version="v"),
        price=Price(
            id=new_id(),
            base_model="m",
            target="base",
            effective_at=_NOW,
            input_nanousd_per_mtok=1,
            cached_input_nanousd_per_mtok=1,
            output_nanousd_per_mtok=1,
        ),
    )
    reservation = Reservation(
        tenant_id=tenant_id, request_id="r", prompt_tokens=1, max_tokens=2, cost_nanousd=3
    )
    return Admission(plan=plan, reservation=reservation, admitted_at=_NOW)


async def _begin(events: Events) -> EventStream:
    answer = await streamed_answer(_admission(), events, Access("r", None), keep_alive_s=0.02)
    assert isinstance(answer, EventStream)
    return answer


async def test_a_slow_start_is_a_stream_of_pings_and_then_the_answer() -> None:
    async def slow() -> Events:
        await asyncio.sleep(0.1)
        yield Delta(text="late")
        yield _FINISHED

    stream = await _begin(slow())
    text = b"".join([chunk async for chunk in stream.events])
    assert b'"content":"late"' in text
    assert text.endswith(b"data: [DONE]\n\n")


async def test_an_error_after_a_slow_start_is_an_event() -> None:
    async def slow() -> Events:
        await asyncio.sleep(0.1)
        raise ServiceUnavailable("Down.", code="engine_unavailable")
        yield _FINISHED

    stream = await _begin(slow())
    *_, last = [chunk async for chunk in stream.events]
    assert b'"code":"engine_unavailable"' in last


async def test_closing_a_stream_before_its_first_token_closes_the_engines_work() -> None:
    closed: list[bool] = []

    async def never() -> Events:
        try:
            await asyncio.Event().wait()
            yield _FINISHED
        finally:
            closed.append(True)

    before = asyncio.all_tasks()
    stream = await _begin(never())
    await anext(stream.events)
    await stream.events.aclose()
    assert closed == [True]
    assert asyncio.all_tasks() == before
