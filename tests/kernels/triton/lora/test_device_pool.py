"""Adapters come and go in a pool whose memory stays; each takes the pages of its own rank."""

import pytest
import torch

from tenora_kernels.errors import KernelInputError, PoolFullError, ShapeError
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import LoraPool
from tenora_kernels.lora.triton_ops import lora_add_
from tenora_kernels.testing import is_close, is_far, random_module
from tests.kernels.triton.lora.trial import trial_of_modules


def _pool(num_adapters: int, capacity_ranks: int, max_rank: int = 64) -> LoraPool:
    pool = LoraPool((24, 8), 16, num_adapters, capacity_ranks, max_rank, torch.float32, "cpu")
    pool.lora_a.fill_(float("nan"))
    pool.lora_b.fill_(float("nan"))
    return pool


def test_scattered_pages_give_the_same_bits(generator: torch.Generator) -> None:
    small = [random_module([8, 8], (24, 8), 16, generator=generator) for _ in range(3)]
    large = random_module([20, 9], (24, 8), 16, generator=generator)
    fresh, worn = _pool(4, 48), _pool(4, 48)
    for pool in (fresh, worn):
        pool.load(0, small[0])
    places = worn.lora_a.data_ptr()
    for index in (1, 2):
        worn.load(index, small[index])
    worn.unload(1)
    worn.load(1, small[2])
    worn.unload(0)
    worn.load(3, large)
    worn.load(0, small[0])
    fresh.load(3, large)
    assert worn.lora_a.data_ptr() == places
    assert worn.table[3, 0, 2:5].tolist() != fresh.table[3, 0, 2:5].tolist()
    x, y = torch.randn(6, 16, generator=generator), torch.randn(6, 32, generator=generator)
    results = []
    for pool in (fresh, worn):
        plan, result = DeviceLoraPlan([pool], 6), y.clone()
        plan.assign(torch.tensor([3, 0, -1, 3, 0, 3]))
        lora_add_(result, x, pool, plan)
        results.append(result)
    assert not torch.equal(results[0], y)
    assert torch.equal(*results)


def test_unloaded_adapter_is_none_and_its_pages_are_free(generator: torch.Generator) -> None:
    pool = _pool(2, 16)
    module = random_module([16, 16], (24, 8), 16, generator=generator)
    pool.load(0, module)
    with pytest.raises(PoolFullError, match="unload another"):
        pool.load(1, module)
    pool.unload(0)
    pool.unload(0)
    pool.load(1, module)
    x, y = torch.randn(2, 16, generator=generator), torch.randn(2, 32, generator=generator)
    plan, result = DeviceLoraPlan([pool], 2), y.clone()
    plan.assign(torch.tensor([0, 1]))
    lora_add_(result, x, pool, plan)
    assert torch.equal(result[0], y[0])
    assert not torch.equal(result[1], y[1])


def test_scale_and_bias_are_the_adapters_own(generator: torch.Generator) -> None:
    modules = [random_module([5, 5], (24, 8), 16, generator=generator) for _ in range(3)]
    pool = LoraPool((24, 8), 16, 3, 24, 8, torch.float32, "cpu", with_scale=True, with_bias=True)
    scale, bias = (torch.rand(32, generator=generator) + 0.5 for _ in "sb")
    pool.load(0, modules[0], out_scale=scale, out_bias=bias)
    pool.load(1, modules[1], out_scale=torch.full((32,), float("nan")))
    pool.load(2, modules[2])
    trial = trial_of_modules(modules, (24, 8), 16)
    y, x = trial.rows(4, generator)
    adapters = torch.tensor([0, 2, -1, 1])
    plain = trial.expected(y, x, adapters)
    expected = plain.clone()
    expected[0] = scale * plain[0] + bias
    plan, result = DeviceLoraPlan([pool], 4), y.clone()
    plan.assign(adapters)
    lora_add_(result, x, pool, plan)
    assert is_far(plain[0], expected[0], torch.float32)
    assert is_close(result[:3], expected[:3], torch.float32)
    assert result[3].isnan().all()


def test_refuses_what_it_was_not_made_for(generator: torch.Generator) -> None:
    pool = _pool(2, 64, max_rank=16)
    module = random_module([4, 4], (24, 8), 16, generator=generator)
    with pytest.raises(KernelInputError, match="lora_index 2"):
        pool.load(2, module)
    with pytest.raises(ShapeError, match="slices"):
        pool.load(0, random_module([4], (24,), 16, generator=generator))
    with pytest.raises(ShapeError, match="expected"):
        pool.load(0, random_module([4, 4], (24, 9), 16, generator=generator))
    with pytest.raises(ShapeError, match="max_rank"):
        pool.load(0, random_module([17, 4], (24, 8), 16, generator=generator))
    with pytest.raises(KernelInputError, match="without out_scale"):
        pool.load(0, module, out_scale=torch.ones(32))
