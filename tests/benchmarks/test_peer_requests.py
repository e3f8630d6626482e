"""What a request becomes in a peer's words."""

from pathlib import Path
from typing import Any

import pytest
from peers.cells import ADAPTERS, BASE
from peers.systems.base import Site
from peers.systems.llama_cpp import LlamaCpp
from peers.systems.vllm import VllmAdapters


@pytest.fixture
def site(tmp_path: Path) -> Site:
    adapters = {name: tmp_path / name for name in ADAPTERS}
    return Site(work=tmp_path, model_dir=tmp_path, adapters=adapters, threads=2, concurrency=16)


def body(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}


def test_llama_cpp_applies_no_adapter_to_the_base_model(site: Site) -> None:
    """An empty list would apply all of them: its server's default is scale 1."""
    assert LlamaCpp(site).request(body(BASE))["lora"] == [{"id": 0, "scale": 0.0}]


def test_llama_cpp_applies_the_adapter_that_is_named(site: Site) -> None:
    assert LlamaCpp(site).request(body(ADAPTERS[2]))["lora"] == [{"id": 2, "scale": 1.0}]


def test_vllm_takes_adapters_by_name_and_ignores_the_end_token(site: Site) -> None:
    sent = VllmAdapters(site).request(body(ADAPTERS[5]))
    assert (sent["model"], sent["ignore_eos"]) == (ADAPTERS[5], True)
