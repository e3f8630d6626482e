"""Every supported family computes the logits of transformers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tenora_engine.core.adapters.active_set import ActiveSet
from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_engine.core.model_runner.cpu_runner import CpuModelRunner
from tenora_engine.core.model_runner.sampler import Sampler
from tenora_engine.core.models.config_file import read_model_config
from tenora_engine.core.models.errors import UnsupportedModelError
from tenora_engine.core.models.loading import load_transformer
from tenora_engine.core.models.precision import Precision
from tenora_kernels import dispatch
from tests.support.tiny_model import FAMILIES, load_reference, make_tiny_model
from tests.support.tolerances import FP32_LOGIT_TOLERANCE

BLOCK_SIZE = 16


def _no_adapters(digest: str) -> AdapterWeights:
    raise KeyError(digest)


def build_runner(folder: Path, dtype: torch.dtype = torch.float32) -> CpuModelRunner:
    config = read_model_config(folder)
    model = load_transformer(folder, config, Precision.of(dtype), 1024)
    return CpuModelRunner(
        model,
        Sampler(model.head, []),
        ActiveSet(config, dtype, _no_adapters),
        num_blocks=32,
        block_size=BLOCK_SIZE,
        kv_dtype=dtype,
    )


@pytest.fixture(params=["cpu", "native"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """The CPU's kernel backends one after the other."""
    before = dispatch.active_backend()
    dispatch.use_backend(dispatch.choose_backend("cpu", request.param))
    yield
    dispatch.use_backend(before)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", family)
    prompt = torch.randint(3, 512, (61,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = load_reference(folder)(prompt[None]).logits[0].float()
        control = load_reference(make_tiny_model(tmp_path / "other", family, seed=1))(
            prompt[None]
        ).logits[0]
    # Scattered blocks in no order: the table alone says where keys and values are.
    actual = build_runner(folder).all_logits(prompt.tolist(), [9, 2, 30, 17], None)
    assert (expected - control).abs().max() > 10 * FP32_LOGIT_TOLERANCE
    assert (expected - actual).abs().max() < FP32_LOGIT_TOLERANCE


def test_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        read_model_config(tmp_path)


def test_missing_folder_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="--model"):
        read_model_config(tmp_path / "absent")


def test_pickled_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="safetensors"):
        build_runner(folder)
