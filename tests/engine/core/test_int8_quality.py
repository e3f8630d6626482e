"""int8 weights on real text: what they cost in quality, and that they are served by name."""

import os
from pathlib import Path

import pytest
import torch

from tenora_engine.core.factory import build_core
from tenora_engine.core.models.errors import UnsupportedModelError
from tenora_engine.demo.base_model import convert_demo_model
from tenora_engine.text.tokenizer import Tokenizer
from tests.support.core_driver import CoreDriver, engine_config
from tests.support.installation import REPOSITORY
from tests.support.tolerances import INT8_KL_NATS, INT8_PERPLEXITY_RATIO

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("e2e")]  # one large model at a time

PROSE = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, "
    "conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we "
    "are engaged in a great civil war, testing whether that nation, or any nation so conceived and "
    "so dedicated, can long endure. We are met on a great battle-field of that war."
)
SCIENCE = (
    "Water boils at 100 degrees Celsius at sea level, but on a high mountain the air presses less "
    "upon its surface, so that it boils sooner and an egg takes longer to cook. The same effect "
    "makes a pressure cooker fast: the steam cannot leave, the pressure rises, and with it the "
    "temperature at which the water turns into vapour."
)
CODE = """\
def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def mean(values):
    return sum(values) / len(values)
"""
LETTER = (
    "Dear support team, my order arrived yesterday, but one of the two boxes was empty and the "
    "invoice lists both. Please send me the missing item or refund the price. I have attached a "
    "photograph of the parcel. Kind regards, and thank you for your help."
)
TEXTS = (PROSE, SCIENCE, CODE, LETTER)


@pytest.fixture(scope="module")
def base_folder() -> Path:
    cache = Path(os.environ.get("TENORA_TEST_CACHE") or REPOSITORY / ".cache")
    return convert_demo_model(cache / "smollm2-135m-instruct")


def log_probabilities(folder: Path, tmp_path: Path, dtype: str) -> list[torch.Tensor]:
    """Of every position of every text: [tokens, vocabulary]."""
    config = engine_config(
        tmp_path / dtype, folder, weight_dtype=dtype, kv_cache_bytes=32 << 20, num_threads=2
    )
    driver, tokenizer = CoreDriver(config), Tokenizer(folder)
    found = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        blocks = list(range(-(-len(ids) // config.block_size)))
        logits = driver.core._runner.all_logits(ids, blocks, None)
        found.append(torch.log_softmax(logits.double(), dim=-1))
    driver.close()
    return found


def perplexity(folder: Path, distributions: list[torch.Tensor]) -> float:
    """Over the tokens of all texts that have one before them."""
    tokenizer = Tokenizer(folder)
    losses = [
        -distribution[position, token]
        for text, distribution in zip(TEXTS, distributions, strict=True)
        for position, token in enumerate(tokenizer.encode(text)[1:])
    ]
    return float(torch.stack(losses).mean().exp())


def test_int8_weights_keep_the_quality_of_real_text(base_folder: Path, tmp_path: Path) -> None:
    exact = log_probabilities(base_folder, tmp_path, "float32")
    rounded = log_probabilities(base_folder, tmp_path, "int8")
    ratio = perplexity(base_folder, rounded) / perplexity(base_folder, exact)
    divergence = torch.cat(
        [(p.exp() * (p - q)).sum(dim=-1) for p, q in zip(exact, rounded, strict=True)]
    ).mean()
    assert 0 < float(divergence) <= INT8_KL_NATS
    assert ratio <= INT8_PERPLEXITY_RATIO


def test_int8_is_refused_by_name_where_the_native_kernels_do_not_run(
    base_folder: Path, tmp_path: Path
) -> None:
    config = engine_config(tmp_path, base_folder, weight_dtype="int8", kernel_backend="cpu")
    with pytest.raises(UnsupportedModelError, match="weight_dtype int8"):
        build_core(config)
