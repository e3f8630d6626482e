"""A client that leaves: the engine stops, the hold ends, what was generated is paid for once."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
import structlog

from tests.support.app import Stack, TestTenant

LONG = ("word ",) * 5000


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(1000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"within 10 s not: {what}")


async def _leave(
    stack: Stack, url: str, tenant: TestTenant, *, stream: bool, after_s: float = 0.0
) -> None:
    """Send a request and cut the connection `after_s` seconds after the engine took it."""
    body = stack.chat_body(stream=stream, max_tokens=2000)
    async with httpx.AsyncClient(base_url=url) as client:
        sending = asyncio.create_task(
            client.post("/v1/chat/completions", json=body, headers=tenant.headers)
        )
        await _until(lambda: _engine_runs(stack), "the engine runs")
        await asyncio.sleep(after_s)
        assert await stack.renewed() == 1
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await _until(lambda: _engine_is_idle(stack), "the engine is idle")
    assert await stack.renewed() == 0


async def _engine_runs(stack: Stack) -> bool:
    return bool(stack.engine.running)


async def _engine_is_idle(stack: Stack) -> bool:
    return not stack.engine.running


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_stops_and_the_tokens_so_far_are_billed(
    stack: Stack, live_url: str, stream: bool
) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = LONG
    stack.engine.token_interval_s = 0.01
    await _leave(stack, live_url, tenant, stream=stream, after_s=0.1)
    (row,) = await stack.settled(tenant)
    assert row.outcome == "aborted"
    assert 1 <= row.completion_tokens < 1000
    assert row.amount_nanousd > 0
    assert await stack.held(tenant) == 0


async def test_a_stream_cut_after_some_deltas_is_billed_for_at_least_these(
    stack: Stack, live_url: str
) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = LONG
    stack.engine.token_interval_s = 0.005
    body = stack.chat_body(stream=True, max_tokens=2000)
    delivered = 0
    async with (
        httpx.AsyncClient(base_url=live_url) as client,
        client.stream(
            "POST", "/v1/chat/completions", json=body, headers=tenant.headers
        ) as response,
    ):
        async for line in response.aiter_lines():
            delivered += '"content":"word "' in line
            if delivered == 6:
                break
    await _until(lambda: _engine_is_idle(stack), "the engine is idle")
    (row,) = await stack.settled(tenant)
    assert (row.outcome, row.streamed) == ("aborted", True)
    assert 6 <= row.completion_tokens < 1000
    assert await stack.held(tenant) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_stops_the_engine(
    stack: Stack, live_url: str, stream: bool
) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = LONG
    stack.engine.token_interval_s = 30.0
    await _leave(stack, live_url, tenant, stream=stream)
    (row,) = await stack.settled(tenant)
    assert (row.outcome, row.completion_tokens) == ("aborted", 0)
    assert await stack.held(tenant) == 0


async def test_a_normal_end_aborts_nothing(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    async with httpx.AsyncClient(base_url=live_url) as client:
        for stream in (False, True):
            body = stack.chat_body(stream=stream)
            response = await client.post("/v1/chat/completions", json=body, headers=tenant.headers)
            assert response.status_code == 200
    assert [row.outcome for row in await stack.settled(tenant)] == ["stop", "stop"]


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    stack: Stack, live_url: str
) -> None:
    tenant = await stack.new_tenant()
    stack.engine.script = LONG
    stack.engine.token_interval_s = 0.005
    before = len(asyncio.all_tasks())

    async def hasty(index: int) -> None:
        body = stack.chat_body(stream=index % 2 == 0, max_tokens=2000)
        # by the clock: httpx counts its own time-out anew from chunk to chunk
        async with httpx.AsyncClient(base_url=live_url, timeout=None) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05 + 0.01 * index):
                    await client.post("/v1/chat/completions", json=body, headers=tenant.headers)

    await asyncio.gather(*(hasty(index) for index in range(30)))
    await _until(lambda: _engine_is_idle(stack), "the engine is idle")

    async def no_tasks_left() -> bool:
        return len(asyncio.all_tasks()) <= before

    await _until(no_tasks_left, "no task is left")
    rows = await stack.settled(tenant)
    assert len(rows) == len(stack.engine.accepted)
    assert {row.outcome for row in rows} <= {"aborted"}
    assert await stack.renewed() == 0
    assert await stack.held(tenant) == 0


async def test_a_client_that_leaves_while_it_sends_is_no_fault_of_ours(
    stack: Stack, live_url: str
) -> None:
    tenant = await stack.new_tenant()
    host, port = live_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n"
        f"Authorization: Bearer {tenant.api_key}\r\n\r\n{{"
    )
    writer.write(head.encode())
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    with structlog.testing.capture_logs() as logs:

        async def is_logged() -> bool:
            return any(line["event"] == "http.request_finished" for line in logs)

        await _until(is_logged, "the request is logged")
    assert [line["status"] for line in logs if "status" in line] == [499]
    assert not [line for line in logs if line["log_level"] == "error"]
