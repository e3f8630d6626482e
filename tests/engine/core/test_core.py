"""A whole core on a tiny model: exact, indifferent to neighbours, and clean afterwards."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tenora_engine.core.messages import AbortSequence, PurgeRoots
from tests.support.core_driver import CoreDriver, add, engine_config
from tests.support.tiny_model import load_reference, make_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(model_dir: Path) -> Any:
    return load_reference(model_dir)


def driver_for(folder: Path, model_dir: Path, **changes: Any) -> CoreDriver:
    return CoreDriver(engine_config(folder, model_dir, **changes))


@pytest.fixture
def driver(tmp_path: Path, model_dir: Path) -> Iterator[CoreDriver]:
    driver = driver_for(tmp_path, model_dir)
    yield driver
    driver.close()


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 512) for _ in range(length)]


def greedy_reference(oracle: Any, token_ids: list[int], count: int) -> list[int]:
    ids = list(token_ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(token_ids) :]


def test_greedy_tokens_equal_transformers(driver: CoreDriver, oracle: Any) -> None:
    requests = [add(f"r{n}", prompt(n, 5 + 11 * n)) for n in range(6)]
    for request in requests:
        expected = greedy_reference(oracle, list(request.token_ids), 12)
        assert driver.run(request)[request.request_id] == expected


def test_an_answer_does_not_depend_on_its_neighbours(driver: CoreDriver) -> None:
    requests = [
        add(f"r{n}", prompt(n, 3 + 7 * n), temperature=0.9 * (n % 2), seed=n, top_p=0.9)
        for n in range(12)
    ]
    alone: dict[str, list[int]] = {}
    for request in requests:
        alone |= driver.run(request)
    driver.tokens.clear()
    assert driver.run(*requests) == alone


@pytest.mark.parametrize("step_tokens", [3, 16])
def test_chunked_prefill_changes_nothing(
    tmp_path: Path, model_dir: Path, driver: CoreDriver, step_tokens: int
) -> None:
    requests = [add(f"r{n}", prompt(n, 40 + n)) for n in range(3)]
    whole = driver.run(*requests)
    chunked = driver_for(tmp_path / "chunked", model_dir, max_step_tokens=step_tokens)
    assert chunked.run(*requests) == whole
    chunked.close()


def test_preemption_changes_nothing(tmp_path: Path, model_dir: Path, driver: CoreDriver) -> None:
    requests = [
        add(f"r{n}", prompt(n, 30), max_tokens=40, temperature=0.8, seed=n) for n in range(4)
    ]
    quiet = driver.run(*requests)
    block_bytes = 2 * 4 * 2 * 16 * 16 * 4
    crowded = driver_for(tmp_path / "crowded", model_dir, kv_cache_bytes=8 * block_bytes)
    assert crowded.ready.num_blocks == 8
    assert crowded.run(*requests) == quiet
    assert sum(output.num_preemptions for output in crowded.last.values()) >= 2
    crowded.close()


def test_prefix_cache_hit_changes_nothing(driver: CoreDriver) -> None:
    first = driver.run(add("first", prompt(1, 50)))
    again = driver.run(add("again", prompt(1, 50)))
    assert again["again"] == first["first"]
    assert driver.last["first"].num_cached_tokens == 0
    assert driver.last["again"].num_cached_tokens == 48


def test_all_blocks_are_free_or_cached_afterwards(driver: CoreDriver) -> None:
    driver.run(*[add(f"r{n}", prompt(n, 20 + n)) for n in range(5)])
    stats = driver.core.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


def test_stop_token_ends_the_sequence_and_counts(driver: CoreDriver) -> None:
    tokens = driver.run(add("free", prompt(2, 9)))["free"]
    stop = tokens[4]
    stopped = driver.run(add("stopped", prompt(2, 9), stop_token_ids=(stop,)))["stopped"]
    assert stopped == tokens[: tokens.index(stop) + 1]
    assert driver.last["stopped"].finish_reason == "stop"


def test_abort_in_mid_run_leaves_the_others_alone(driver: CoreDriver) -> None:
    expected = driver.run(add("alone", prompt(4, 20)))["alone"]
    driver.core.handle(add("doomed", prompt(5, 20)))
    driver.core.handle(add("other", prompt(4, 20)))
    driver.step()
    driver.core.handle(AbortSequence(request_id="doomed"))
    while driver.core.has_work:
        driver.step()
    assert driver.tokens["other"] == expected
    assert len(driver.tokens["doomed"]) == 1


def test_a_prompt_beyond_the_pool_is_refused_and_the_next_one_works(
    tmp_path: Path, model_dir: Path
) -> None:
    block_bytes = 2 * 4 * 2 * 16 * 16 * 4
    driver = driver_for(tmp_path, model_dir, kv_cache_bytes=4 * block_bytes)
    driver.run(add("long", prompt(1, 65)), add("exact", prompt(1, 64)), add("wall", prompt(1, 60)))
    refused = driver.last["long"].error
    assert refused is not None
    assert refused.code == "context_length_exceeded"
    assert len(driver.tokens["exact"]) == 1
    assert driver.last["wall"].finish_reason == "length"
    assert len(driver.tokens["wall"]) == 5
    assert len(driver.run(add("next", prompt(1, 10)))["next"]) == 12
    driver.close()


def test_purged_prefixes_are_gone_and_zeroed(driver: CoreDriver) -> None:
    driver.run(add("first", prompt(1, 50)))
    reply = driver.core.handle(PurgeRoots(call_id=1, cache_roots=(add("x", [5]).cache_root,)))
    assert reply is not None
    assert reply.purge is not None
    assert reply.purge.num_blocks_zeroed == 3
    driver.run(add("again", prompt(1, 50), max_tokens=1))
    assert driver.last["again"].num_cached_tokens == 0


def test_seeded_draws_depend_on_seed_and_position_alone(driver: CoreDriver) -> None:
    def drawn(request_id: str, seed: int) -> list[int]:
        request = add(request_id, prompt(3, 12), temperature=1.0, seed=seed, max_tokens=20)
        return driver.run(request)[request_id]

    assert drawn("a", 123) == drawn("b", 123)
    assert drawn("c", 123) != drawn("d", 124)
