"""In bfloat16 the engine is at most 1.5 times as far from float32 as peft itself is."""

import os
from pathlib import Path

import pytest
import torch

from tenora_engine.demo.base_model import convert_demo_model
from tenora_engine.text.tokenizer import Tokenizer
from tests.support.core_driver import CoreDriver, engine_config
from tests.support.installation import REPOSITORY
from tests.support.peft_adapters import install_adapter, load_peft, peft_logits
from tests.support.tolerances import BF16_ERROR_RATIO

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("e2e")]  # one large model at a time

EXAMPLES = REPOSITORY / "examples" / "adapters"
NAMES = ("support-json", "pirate", "couplet")
PROMPTS = (
    "The capital of France is Paris, and the capital of Italy is",
    "My invoice shows the wrong amount and I was charged twice this month.",
)


@pytest.fixture(scope="module")
def base_folder() -> Path:
    cache = Path(os.environ.get("TENORA_TEST_CACHE") or REPOSITORY / ".cache")
    return convert_demo_model(cache / "smollm2-135m-instruct")


def error(logits: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Largest and root-mean-square difference."""
    difference = logits - exact
    return float(difference.abs().max()), float(difference.pow(2).mean().sqrt())


async def test_bfloat16_error_is_within_one_and_a_half_of_pefts(
    base_folder: Path, tmp_path: Path
) -> None:
    config = engine_config(
        tmp_path, base_folder, weight_dtype="bfloat16", kv_cache_bytes=32 << 20, num_threads=2
    )
    digests = {name: await install_adapter(config, EXAMPLES / name) for name in NAMES}
    driver = CoreDriver(config)
    tokenizer = Tokenizer(base_folder)
    folders = {name: EXAMPLES / name for name in NAMES}
    exact_model = load_peft(base_folder, folders, torch.float32)
    rounded_model = load_peft(base_folder, folders, torch.bfloat16)
    for name in (None, *NAMES):
        digest = digests[name] if name else None
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt)
            exact = peft_logits(exact_model, name, ids)
            theirs.append(error(peft_logits(rounded_model, name, ids), exact))
            while digest is not None and not driver.core._residency.is_resident(digest):
                pass
            blocks = list(range(-(-len(ids) // config.block_size)))
            ours.append(error(driver.core._runner.all_logits(ids, blocks, digest), exact))
        for kind in (0, 1):
            our_error = max(pair[kind] for pair in ours)
            their_error = max(pair[kind] for pair in theirs)
            assert 0 < our_error <= BF16_ERROR_RATIO * their_error, (name, kind)
    driver.close()
