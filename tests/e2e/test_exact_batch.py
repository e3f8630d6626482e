"""Sixteen requests at once equal peft for each alone, and the books add up afterwards."""

import asyncio
import json
import warnings
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import openai
import pytest
import torch
from redis import Redis

from tenora_engine.protocol.messages import Health
from tenora_engine.protocol.remote import RemoteEngine
from tests.support.installation import REPOSITORY, Installation, wait_until
from tests.support.peft_adapters import load_peft, peft_generate

with warnings.catch_warnings():
    # transformers warns about optional backends that are not installed.
    warnings.simplefilter("ignore")
    from transformers import AutoTokenizer

EXAMPLES = REPOSITORY / "examples" / "adapters"
ADAPTER_OF = {
    ("acme", "support"): "support-json",
    ("acme", "style"): "pirate",
    ("globex", "style"): "couplet",
}
SUBJECTS = (
    "a late parcel",
    "the moon",
    "bread",
    "my password",
    "a lost dog",
    "rain",
    "taxes",
    "tea",
)
MAX_TOKENS = 24


def plan(base_model: str) -> list[tuple[str, str, str]]:
    """Sixteen requests: both tenants, every adapter and the base, different lengths."""
    targets = [*ADAPTER_OF, ("acme", base_model), ("globex", base_model)]
    return [
        (*targets[n % len(targets)], f"Tell me {'something ' * (n % 4)}about {SUBJECTS[n % 8]}.")
        for n in range(16)
    ]


def peft_answer(model: Any, tokenizer: Any, adapter: str | None, question: str) -> tuple[str, int]:
    """Greedy text and number of sampled tokens, computed alone."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    sampled = peft_generate(model, adapter, ids, MAX_TOKENS)
    return tokenizer.decode(sampled, skip_special_tokens=True), len(sampled)


async def ask_all(
    installation: Installation, requests: list[tuple[str, str, str]]
) -> list[openai.types.chat.ChatCompletion]:
    async with AsyncExitStack() as opened:
        clients = {
            name: await opened.enter_async_context(
                openai.AsyncOpenAI(
                    base_url=f"{installation.base_url}/v1",
                    api_key=installation.tenant(name)["api_key"],
                )
            )
            for name in ("acme", "globex")
        }
        return await asyncio.gather(
            *(
                clients[tenant].chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": question}],
                    temperature=0,
                    max_tokens=MAX_TOKENS,
                )
                for tenant, model, question in requests
            )
        )


@pytest.fixture(scope="module")
def base_folder(installation: Installation) -> Path:
    return Path(installation._environ["TENORA_MODEL_CACHE"])


@pytest.fixture(scope="module")
def oracle(base_folder: Path) -> Any:
    folders = {name: EXAMPLES / name for name in ADAPTER_OF.values()}
    return load_peft(base_folder, folders, torch.float32)


async def test_sixteen_at_once_equal_peft_and_are_billed_exactly(
    installation: Installation, oracle: Any, base_folder: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    requests = plan(installation.demo["base_model"])
    answers = await ask_all(installation, requests)
    for (tenant, model, question), answer in zip(requests, answers, strict=True):
        expected = peft_answer(oracle, tokenizer, ADAPTER_OF.get((tenant, model)), question)
        assert answer.usage is not None
        actual = (answer.choices[0].message.content, answer.usage.completion_tokens)
        assert actual == expected, (tenant, model, question)
    await check_books(installation, answers)


async def check_books(
    installation: Installation, answers: list[openai.types.chat.ChatCompletion]
) -> None:
    ids = {answer.id for answer in answers}

    def settled() -> dict[str, dict[str, Any]] | None:
        rows = [*installation.usage_records("acme"), *installation.usage_records("globex")]
        found = {row["request_id"]: row for row in rows if row["request_id"] in ids}
        return found if len(found) == len(ids) else None

    records = wait_until(settled, timeout_s=10, what="one record per request")
    total = 0
    for answer in answers:
        usage, row = answer.usage, records[answer.id]
        assert usage is not None
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (
            usage.prompt_tokens,
            cached,
            usage.completion_tokens,
        )
        # 100, 10 and 400 nano-USD a token: the demo's prices.
        fresh = usage.prompt_tokens - (cached or 0)
        amount = 100 * fresh + 10 * (cached or 0) + 400 * usage.completion_tokens
        assert row["amount_nanousd"] == amount
        total += amount
    assert await ledger_amounts(installation, ids) == (len(ids), total)
    wait_until(lambda: held(installation) == 0, timeout_s=10, what="reserved and in-flight zero")
    health = await engine_health(installation)
    assert (health.num_running, health.num_waiting) == (0, 0)
    assert health.num_free_blocks + health.num_cached_blocks == health.num_blocks


async def ledger_amounts(installation: Installation, ids: set[str]) -> tuple[int, int]:
    """Number of ledger entries of the requests, and their sum."""
    connection = await asyncpg.connect(installation.database_url.replace("+asyncpg", ""))
    try:
        row = await connection.fetchrow(
            "select count(*), sum(amount_nanousd)::bigint from ledger_entries"
            " where source_id = any($1::text[])",
            list(ids),
        )
    finally:
        await connection.close()
    return row[0], row[1]


def held(installation: Installation) -> int:
    """Live leases and held money over all tenants."""
    redis = Redis(unix_socket_path=str(installation.data / "run" / "redis.sock"))
    with redis:
        leases = sum(redis.zcard(key) for key in redis.scan_iter("tenora:quota:*:leases"))
        money = sum(
            int(value)
            for key in redis.scan_iter("tenora:quota:*:held")
            for value in redis.hvals(key)
        )
    return leases + money


async def engine_health(installation: Installation) -> Health:
    """The engine's own account of itself."""
    engine = RemoteEngine(f"ipc://{installation.data / 'run' / 'engine.sock'}")
    try:
        return await engine.health()
    finally:
        await engine.close()


def test_demo_file_is_private(installation: Installation) -> None:
    path = installation.data / "demo.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert set(json.loads(path.read_text())) == {"base_url", "base_model", "admin", "tenants"}
