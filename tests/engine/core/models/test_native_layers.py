"""All layers in one call of C++ give the bits of the layers called one operator at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tenora_engine.core.adapters.active_set import ActiveSet
from tenora_engine.core.adapters.weights import FUSED_TARGETS, AdapterWeights, product_shapes
from tenora_engine.core.model_runner.cpu_runner import CpuModelRunner
from tenora_engine.core.model_runner.forward_batch import BatchRow, build_forward_batch
from tenora_engine.core.model_runner.sampler import Sampler
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.config_file import read_model_config
from tenora_engine.core.models.loading import load_transformer
from tenora_engine.core.models.precision import Precision
from tenora_kernels import dispatch
from tenora_kernels.testing import random_module
from tests.support.tiny_model import FAMILIES, make_tiny_model

BLOCK_SIZE = 16
RANKS = {"a": 3, "b": 17, "c": 64}
PROMPTS = ([*range(5, 66)], [*range(9, 30)], [7], [*range(100, 140)])


@pytest.fixture(autouse=True)
def native_backend() -> Iterator[None]:
    """The backend that has both ways."""
    before = dispatch.active_backend()
    dispatch.use_backend(dispatch.choose_backend("cpu", "native"))
    yield
    dispatch.use_backend(before)


def _adapter(config: ModelConfig, digest: str) -> AdapterWeights:
    """Random factors on some products of some layers."""
    generator = torch.Generator().manual_seed(RANKS[digest])
    shapes = product_shapes(config)
    layers = tuple(
        {
            product: random_module(
                [RANKS[digest]] * len(shapes[product][0]), *shapes[product], generator=generator
            )
            if (index + len(product)) % 3
            else None
            for product in FUSED_TARGETS
        }
        for index in range(config.num_layers)
    )
    return AdapterWeights(digest=digest, layers=layers, size_bytes=1, total_rank=1)


def _runner(folder: Path) -> CpuModelRunner:
    config = read_model_config(folder)
    precision = Precision(activations=torch.float32, weights=torch.bfloat16)
    model = load_transformer(folder, config, precision, 256)
    return CpuModelRunner(
        model,
        Sampler(model.head, []),
        ActiveSet(config, torch.float32, lambda digest: _adapter(config, digest)),
        num_blocks=40,
        block_size=BLOCK_SIZE,
        kv_dtype=torch.float32,
    )


def _steps(runner: CpuModelRunner) -> list[torch.Tensor]:
    """Logits of a mixed prefill, a decode step of all, and a step without adapters."""
    rows = [
        BatchRow(prompt, 0, [*range(10 * i, 10 * i + 8)], i - 1, 1)
        for i, prompt in enumerate(PROMPTS)
    ]
    decodes = [
        BatchRow([3], len(row.token_ids), row.block_table, row.adapter_index, 1) for row in rows
    ]
    chunk = [BatchRow(PROMPTS[0][:20], 0, [39, 38], -1, 0), BatchRow([4], 1, [35], -1, 1)]
    logits = []
    for step, adapters in ((rows, RANKS), (decodes, RANKS), (chunk, ())):
        stacked = runner._active_set.covering(adapters)
        batch = build_forward_batch(step, block_size=BLOCK_SIZE, num_adapters=len(adapters))
        logits.append(runner._model.head.logits(runner._hidden_states(batch, stacked)))
    return logits


def _check_both_ways(runner: CpuModelRunner) -> None:
    with torch.inference_mode():
        together = _steps(runner)
        runner._layers = None
        for one_call, many in zip(together, _steps(runner), strict=True):
            assert one_call.isfinite().all()
            assert torch.equal(one_call, many)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_one_call_equals_many(family: str, tmp_path: Path) -> None:
    runner = _runner(make_tiny_model(tmp_path / "model", family))
    has_both = runner._layers is not None
    assert has_both == (runner._model.config.residual_multiplier == 1.0)
    _check_both_ways(runner)


def test_rows_in_several_blocks_keep_their_bits(tmp_path: Path) -> None:
    """So wide a feed-forward lets at most 64 rows through at a time; the prefill has 123."""
    folder = make_tiny_model(tmp_path / "model", intermediate_size=8192)
    _check_both_ways(_runner(folder))
