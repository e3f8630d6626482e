"""Adapters in one batch equal peft, unmerged, for each request alone."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tenora_engine.config import EngineConfig
from tests.support.core_driver import CoreDriver, add, engine_config
from tests.support.peft_adapters import (
    install_adapter,
    load_peft,
    make_peft_adapter,
    peft_greedy,
    peft_logits,
)
from tests.support.tiny_model import make_tiny_model
from tests.support.tolerances import FP32_LOGIT_TOLERANCE

ADAPTERS: dict[str, dict[str, Any]] = {
    "rank1": {"r": 1, "lora_alpha": 4},
    "rank7_attention": {"r": 7, "target_modules": ["q_proj", "v_proj"]},
    "rank33_rslora": {"r": 33, "lora_alpha": 16, "use_rslora": True},
    "patterns": {
        "r": 8,
        "rank_pattern": {"layers.3.self_attn.q_proj": 32, "down_proj": 3},
        "alpha_pattern": {"layers.3.self_attn.q_proj": 128},
    },
    "upper_half": {"layers_to_transform": [2, 3], "r": 16},
    "negative": {"r": 4, "lora_alpha": -8},
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folders(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: make_peft_adapter(model_dir, root / name, seed=seed, **lora)
        for seed, (name, lora) in enumerate(ADAPTERS.items())
    }


@pytest.fixture(scope="module")
def oracle(model_dir: Path, folders: dict[str, Path]) -> Any:
    return load_peft(model_dir, folders, torch.float32)


@pytest.fixture
def config(tmp_path: Path, model_dir: Path) -> EngineConfig:
    return engine_config(tmp_path, model_dir)


@pytest.fixture
async def digests(config: EngineConfig, folders: dict[str, Path]) -> dict[str, str]:
    return {name: await install_adapter(config, folder) for name, folder in folders.items()}


@pytest.fixture
def driver(config: EngineConfig) -> Iterator[CoreDriver]:
    driver = CoreDriver(config)
    yield driver
    driver.close()


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 512) for _ in range(length)]


def test_a_mixed_batch_equals_peft_token_for_token(
    driver: CoreDriver, digests: dict[str, str], oracle: Any
) -> None:
    names = [None, *ADAPTERS, None, *ADAPTERS]
    requests = [
        add(f"r{n}", prompt(n, 4 + 5 * n), adapter=digests[name] if name else None)
        for n, name in enumerate(names)
    ]
    answers = driver.run(*requests)
    for request, name in zip(requests, names, strict=True):
        expected = peft_greedy(oracle, name, list(request.token_ids), 12)
        assert answers[request.request_id] == expected, name


@pytest.mark.parametrize("name", [None, *ADAPTERS])
def test_logits_equal_peft_within_the_bound(
    driver: CoreDriver, digests: dict[str, str], oracle: Any, name: str | None
) -> None:
    token_ids = prompt(99, 60)
    driver.run(*[add(f"w{d}", prompt(1, 5), adapter=d, max_tokens=1) for d in digests.values()])
    expected = peft_logits(oracle, name, token_ids)
    wrong = peft_logits(oracle, "rank1" if name != "rank1" else None, token_ids)
    assert (expected - wrong).abs().max() > 10 * FP32_LOGIT_TOLERANCE
    digest = digests[name] if name else None
    actual = driver.core._runner.all_logits(token_ids, [0, 5, 9, 2], digest)
    assert (expected - actual).abs().max() < FP32_LOGIT_TOLERANCE


def test_a_cold_adapter_is_loaded_while_others_run(
    driver: CoreDriver, digests: dict[str, str]
) -> None:
    answers = driver.run(
        add("base", prompt(1, 9)), add("cold", prompt(1, 9), adapter=digests["patterns"])
    )
    assert len(answers["base"]) == len(answers["cold"]) == 12
    assert answers["base"] != answers["cold"]


def test_a_missing_adapter_fails_its_own_request_only(driver: CoreDriver) -> None:
    answers = driver.run(add("absent", prompt(1, 9), adapter="0" * 64), add("base", prompt(1, 9)))
    error = driver.last["absent"].error
    assert error is not None
    assert error.code == "adapter_unavailable"
    assert len(answers["base"]) == 12


def test_the_same_prompt_under_another_adapter_shares_no_cache(
    driver: CoreDriver, digests: dict[str, str]
) -> None:
    order = [None, "rank1", "patterns", None, "rank1"]
    answers = []
    cached = []
    for n, name in enumerate(order):
        request = add(f"r{n}", prompt(1, 64), adapter=digests[name] if name else None)
        answers.append(driver.run(request)[request.request_id])
        cached.append(driver.last[request.request_id].num_cached_tokens)
    assert cached == [0, 0, 0, 48, 48]
    assert answers[0] == answers[3]
    assert answers[1] == answers[4]
