"""The usage journal: durable, in order, never twice, and whole after any death."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_engine.front.journal import REPLICA_LOST, UsageJournal
from tenora_engine.protocol.errors import EngineUnavailableError
from tenora_engine.protocol.messages import (
    ExecutionIdentity,
    Outcome,
    SamplingParams,
    Timings,
    Usage,
    UsageRecord,
)
from tests.support.front import short_folder

IDENTITY = ExecutionIdentity(
    model_digest="m",
    tokenizer_digest="t",
    template_version="v",
    adapter_digest=None,
    engine_version="e",
    kernel_backend="k",
    weight_dtype="w",
    kv_dtype="kv",
    attention_backend="a",
    topology="1",
    prefix_cache="off",
    sampling=SamplingParams(),
)


def record(request_id: str, *, tokens: int = 0, outcome: Outcome = "stop") -> UsageRecord:
    is_lost = outcome == "error"
    return UsageRecord(
        replica_id="r",
        seq=0,
        request_id=request_id,
        outcome=outcome,
        usage=Usage(prompt_tokens=5, completion_tokens=tokens),
        timings=Timings(),
        identity=IDENTITY,
        execution_hash=IDENTITY.execution_hash(),
        started_at_ms=1,
        completed_at_ms=2,
        attribution=b"a",
        error_code=REPLICA_LOST if is_lost else None,
        estimated=is_lost,
    )


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[UsageJournal]:
    journal = UsageJournal(path, replica_id="r", now_ms=lambda: 99)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


async def run(journal: UsageJournal, request_id: str) -> None:
    assert await journal.begin(record(request_id, outcome="error"))
    await journal.finish(record(request_id, tokens=3))


async def test_ended_requests_come_back_in_order(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        for name in ("b", "a", "c"):
            await run(journal, name)
        batch = await journal.pull(limit=2)
        assert [r.request_id for r in batch.records] == ["b", "a"]
        assert [r.seq for r in batch.records] == [1, 2]
        assert journal.backlog == 3


async def test_another_process_sees_the_record_once_finish_is_done(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        await run(journal, "a")
        with sqlite3.connect(folder / "j") as other:
            assert other.execute("select request_id from records").fetchall() == [("a",)]
        other.close()


async def test_sequence_numbers_are_never_reused(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        await run(journal, "a")
        await run(journal, "b")
        await journal.acknowledge(up_to_seq=2)
        assert journal.backlog == 0
    async with opened(folder / "j") as journal:
        await run(journal, "c")
        assert [r.seq for r in (await journal.pull(limit=9)).records] == [3]


async def test_acknowledging_forgets_up_to_there_and_is_idempotent(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        for name in ("a", "b", "c"):
            await run(journal, name)
        for _ in range(2):
            await journal.acknowledge(up_to_seq=2)
        assert [r.request_id for r in (await journal.pull(limit=9)).records] == ["c"]
        assert journal.backlog == 1


async def test_next_life_ends_what_was_running_with_the_last_checkpoint(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        await journal.begin(record("lost", outcome="error"))
        journal.checkpoint(record("lost", tokens=64, outcome="error"))
        await run(journal, "fine")
    async with opened(folder / "j") as journal:
        fine, lost = (await journal.pull(limit=9)).records
        assert journal.backlog == 2
    assert (fine.request_id, fine.outcome) == ("fine", "stop")
    assert (lost.request_id, lost.outcome, lost.error_code) == ("lost", "error", "replica_lost")
    assert (lost.estimated, lost.usage.completion_tokens) == (True, 64)
    assert lost.completed_at_ms == 99
    async with opened(folder / "j") as journal:
        assert journal.backlog == 2  # ended once, not once per life


async def test_used_ids_are_not_begun_again(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        assert await journal.begin(record("a", outcome="error"))
        assert not await journal.begin(record("a", outcome="error"))
        await journal.finish(record("a"))
        assert not await journal.begin(record("a", outcome="error"))


async def test_many_operations_share_commits(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        await asyncio.gather(*(journal.begin(record(f"r{i}", outcome="error")) for i in range(500)))
        await asyncio.gather(*(journal.finish(record(f"r{i}")) for i in range(500)))
        assert journal.backlog == 500
        batch = await journal.pull(limit=1000)
        assert [r.seq for r in batch.records] == list(range(1, 501))


async def test_failed_commit_fails_all_of_it_and_recovers(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        other = sqlite3.connect(folder / "j", isolation_level=None)
        other.execute("begin immediate")
        other.execute("alter table records rename to hidden")
        other.execute("commit")
        with pytest.raises(EngineUnavailableError) as caught:
            await journal.finish(record("a"))
        assert caught.value.code == "journal_unavailable"
        assert not journal.is_writable
        assert journal.backlog == 0
        other.execute("alter table hidden rename to records")
        other.close()
        await journal.check_writable()
        assert journal.is_writable
        await run(journal, "b")


async def test_unusable_path_is_an_engine_error(folder: Path) -> None:
    journal = UsageJournal(folder / "none" / "j", replica_id="r", now_ms=lambda: 0)
    with pytest.raises(EngineUnavailableError):
        await journal.open()
    await journal.close()


async def test_closed_journal_refuses(folder: Path) -> None:
    async with opened(folder / "j") as journal:
        pass
    with pytest.raises(EngineUnavailableError):
        await journal.pull(limit=1)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.sampled_from(["begin", "finish", "pull", "ack", "restart"]), max_size=25))
async def test_every_begun_request_is_pulled_until_acknowledged(steps: list[str]) -> None:
    """Whatever the order of work, acknowledgements and restarts: nothing lost, nothing twice."""
    folder = short_folder()
    path = folder / "j"
    running: list[str] = []
    ended: set[str] = set()
    acknowledged: set[str] = set()
    count = 0
    journal = UsageJournal(path, replica_id="r", now_ms=lambda: 0)
    await journal.open()
    for step in steps:
        if step == "begin":
            count += 1
            running.append(f"r{count}")
            await journal.begin(record(running[-1], outcome="error"))
        elif step == "finish" and running:
            name = running.pop()
            await journal.finish(record(name))
            ended.add(name)
        elif step == "restart":
            await journal.close()
            journal = UsageJournal(path, replica_id="r", now_ms=lambda: 0)
            await journal.open()
            ended.update(running)
            running.clear()
        batch = (await journal.pull(limit=100)).records
        assert {r.request_id for r in batch} == ended - acknowledged
        assert journal.backlog == len(batch)
        if step == "ack" and batch:
            middle = batch[len(batch) // 2]
            await journal.acknowledge(up_to_seq=middle.seq)
            acknowledged.update(r.request_id for r in batch if r.seq <= middle.seq)
    await journal.close()
    shutil.rmtree(folder)
