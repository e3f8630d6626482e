"""The GPU's runner gives the tokens of the reference backend: graphs, slots, padding, chunks."""

import asyncio
import json
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tenora_kernels import dispatch
from tests.engine.core.gpu.in_interpreter import run_task
from tests.support.core_driver import engine_config
from tests.support.peft_adapters import install_adapter, make_peft_adapter
from tests.support.tiny_model import make_tiny_model
from tests.support.tolerances import FP32_LOGIT_TOLERANCE

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
    pytest.mark.xdist_group("gpu core"),  # one worker, so that the interpreter runs once
]

RANKS = (1, 9, 20)
SHAPES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
BLOCK_BYTES = 2 * 2 * 1 * 16 * 16 * 4


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 512) for _ in range(length)]


def request(name: str, length: int, adapter: str | None = None, **more: Any) -> dict[str, Any]:
    token_ids = prompt(len(name) + 7 * length, length)
    return {"request_id": name, "token_ids": token_ids, "adapter": adapter, "max_tokens": 3} | more


def tasks_of(digests: list[str]) -> dict[str, dict[str, Any]]:
    """Named scenarios; each is one core."""
    adapters = [None, digests[0], digests[1], digests[2], digests[1]]
    mixed = [request(f"mixed-{n}", 5 + 9 * n, a) for n, a in enumerate(adapters)]
    drawn = [
        request("drawn-0", 8, temperature=0.9, top_p=0.8, seed=5),
        request("drawn-1", 9, digests[1], temperature=1.2, seed=6),
        request("drawn-2", 10),
    ]
    return {
        # chunks and decodes in one step, all adapters, 5 rows in a graph of 6
        "mixed": {
            "settings": {
                "max_step_tokens": 24,
                "max_running_sequences": 6,
                "batch_invariant": True,
            },
            "waves": [mixed],
        },
        # a wave without adapters replays the other graphs
        "base": {"settings": {}, "waves": [[request(f"base-{n}", 6 + n) for n in range(3)]]},
        # a prompt of more tokens than a step has
        "probed": {
            "settings": {"max_step_tokens": 16},
            "waves": [[request("before", 20)]],
            "probes": [{"digest": digests[1], "prompts": [prompt(1, 21), prompt(2, 5)]}],
        },
        # two places and memory for one large adapter: they follow each other
        "reuse": {
            "settings": {"max_device_adapters": 1, "device_adapter_ranks": 24, "max_lora_rank": 24},
            "waves": [
                [request(f"reuse-{n}", 9 + n, digest) for n, digest in enumerate(digests)],
                [request("reuse-again", 12, digests[0])],
            ],
        },
        "preempted": {
            "settings": {"kv_cache_bytes": 4 * BLOCK_BYTES},
            "waves": [[request(f"pre-{n}", 30, digests[n], max_tokens=5) for n in range(2)]],
        },
        "drawn": {"settings": {}, "waves": [drawn]},
    }


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    root = tmp_path_factory.mktemp("gpu")
    model_dir = make_tiny_model(root / "model", **SHAPES)
    config = engine_config(root, model_dir)
    digests = [
        asyncio.run(
            install_adapter(config, make_peft_adapter(model_dir, root / f"r{r}", seed=r, r=r))
        )
        for r in RANKS
    ]
    common = {"folder": str(root), "model_dir": str(model_dir)}
    few = {"max_device_adapters": 3}
    return {
        name: common | task | {"settings": few | task["settings"]}
        for name, task in tasks_of(digests).items()
    }


@pytest.fixture(scope="module")
def interpreted(
    tasks: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Every task through the GPU's runner, in one process of its own."""
    folder = tmp_path_factory.mktemp("interpreted")
    on_triton = {
        name: task | {"settings": task["settings"] | {"kernel_backend": "triton"}}
        for name, task in tasks.items()
    }
    (folder / "tasks.json").write_text(json.dumps(on_triton))
    command = [sys.executable, "-m", "tests.engine.core.gpu.in_interpreter"]
    result = subprocess.run(
        [*command, str(folder / "tasks.json"), str(folder / "answers.json")],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return answers


def on_reference(task: dict[str, Any]) -> dict[str, Any]:
    """The task in this process, by the specification of every op."""
    before = dispatch.active_backend()
    try:
        return run_task(task | {"settings": task["settings"] | {"kernel_backend": "reference"}})
    finally:
        dispatch.use_backend(before)


@pytest.mark.parametrize("name", ["mixed", "base", "reuse", "preempted", "drawn"])
def test_tokens_equal_those_of_the_reference_backend(
    name: str, tasks: dict[str, dict[str, Any]], interpreted: dict[str, Any]
) -> None:
    expected, got = on_reference(tasks[name]), interpreted[name]
    assert got["tokens"] == expected["tokens"]
    assert all(got["tokens"].values())
    assert got["free_blocks"] == got["blocks"]


def test_probes_and_purges_equal_those_of_the_reference_backend(
    tasks: dict[str, dict[str, Any]], interpreted: dict[str, Any]
) -> None:
    expected, got = on_reference(tasks["probed"]), interpreted["probed"]
    assert got["tokens"] == expected["tokens"]
    assert got["num_zeroed"] == expected["num_zeroed"] == 1
    [[delta, share]], [[expected_delta, expected_share]] = got["probes"], expected["probes"]
    assert expected_delta > 10 * FP32_LOGIT_TOLERANCE
    assert abs(delta - expected_delta) < FP32_LOGIT_TOLERANCE
    assert share == expected_share > 0


def test_the_core_says_what_ran(interpreted: dict[str, Any]) -> None:
    assert interpreted["base"]["kernel_backend"] == "triton"
    assert interpreted["base"]["attention_backend"] == "triton-paged"
    assert interpreted["preempted"]["preemptions"] > 0
