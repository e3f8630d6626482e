"""An adapter is packed by the thread that loads it, before any step runs it."""

from pathlib import Path
from typing import Any

from tenora_kernels.lora import native
from tests.support.core_driver import CoreDriver, engine_config
from tests.support.peft_adapters import install_adapter, make_peft_adapter
from tests.support.tiny_model import make_tiny_model


async def test_a_resident_adapter_is_packed_already(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "model")
    config = engine_config(tmp_path, base, kernel_backend="native")
    digest = await install_adapter(config, make_peft_adapter(base, tmp_path / "a", seed=1))
    driver = CoreDriver(config)
    residency: Any = driver.core._residency  # the CPU's is the host tier itself
    while not residency.is_resident(digest):
        pass
    weights = residency.weights(digest)
    modules = [m for layer in weights.layers for m in layer.values() if m]
    assert modules
    assert all(module in native._packed for module in modules)
    driver.close()


async def test_the_packed_copy_counts_as_memory_of_its_adapter(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "model")
    config = engine_config(tmp_path, base, kernel_backend="native")
    digest = await install_adapter(config, make_peft_adapter(base, tmp_path / "a", seed=1))
    driver = CoreDriver(config)
    residency: Any = driver.core._residency
    while not residency.is_resident(digest):
        pass
    weights = residency.weights(digest)
    factors = sum(
        part.lora_a.nbytes + part.lora_b.nbytes
        for layer in weights.layers
        for module in layer.values()
        if module is not None
        for part in module.slices
        if part is not None
    )
    assert weights.size_bytes >= 2 * factors
    driver.close()
