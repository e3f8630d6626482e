"""Batched LoRA: right for any mix, and a row sees its own adapter only."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tenora_kernels.errors import DtypeError, KernelInputError, ShapeError
from tenora_kernels.lora import LoraModule, LoraPlan, LoraStack, lora_add_, reference, stack_modules
from tenora_kernels.testing import is_close, is_far, random_module

pytestmark = pytest.mark.usefixtures("backend")

SIZES = (96, 32, 32)
IN_FEATURES = 72
RANKS = (1, 3, 8, 16, 63, 128, 5, 2)


def _modules(generator: torch.Generator, dtype: torch.dtype = torch.float32) -> list[LoraModule]:
    return [
        random_module([rank] * 3, SIZES, IN_FEATURES, generator=generator, dtype=dtype)
        for rank in RANKS
    ]


def _stack(modules: Sequence[LoraModule | None], dtype: torch.dtype = torch.float32) -> LoraStack:
    return stack_modules(modules, SIZES, IN_FEATURES, dtype)


def _rows(
    count: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    y = torch.randn(count, sum(SIZES), generator=generator).to(dtype)
    return y, torch.randn(count, IN_FEATURES, generator=generator).to(dtype)


def _added(y: Tensor, x: Tensor, stack: LoraStack, adapters: Tensor) -> Tensor:
    result = y.clone()
    lora_add_(result, x, stack, LoraPlan(adapters, stack.num_adapters))
    return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 4, 16, 63, 65])
def test_equals_reference_for_mixed_ranks(
    count: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    stack = _stack(_modules(generator, dtype), dtype)
    y, x = _rows(count, generator, dtype)
    adapters = torch.arange(count) % (len(RANKS) + 1) - 1 if count > 1 else torch.tensor([4])
    expected, shifted = y.clone(), y.clone()
    reference.lora_add_(expected, x, stack, adapters)
    reference.lora_add_(shifted, x, stack, (adapters + 2) % len(RANKS))
    assert is_far(y, expected, dtype)
    assert is_far(shifted, expected, dtype)
    assert is_close(_added(y, x, stack, adapters), expected, dtype)


@pytest.mark.parametrize("count", [2049])
def test_long_runs_equal_reference(count: int, generator: torch.Generator) -> None:
    stack = _stack(_modules(generator))
    y, x = _rows(count, generator)
    adapters = torch.tensor([3] * 700 + [-1] * 50 + [0, 5, 1] + [4] * 1246 + [7] * 50)
    expected = y.clone()
    reference.lora_add_(expected, x, stack, adapters)
    plan = LoraPlan(adapters, stack.num_adapters).for_stack(stack)
    assert plan.runs
    assert plan.dense is not None
    assert is_close(_added(y, x, stack, adapters), expected, torch.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_row_is_independent_of_neighbours_and_of_other_adapters(
    threads: int, generator: torch.Generator
) -> None:
    torch.set_num_threads(threads)
    modules = _modules(generator)
    y, x = _rows(1, generator)
    for index, module in enumerate(modules):
        alone = _added(y, x, _stack([module]), torch.tensor([0]))
        for trial in range(12 // threads):
            others = int(torch.randint(0, 700 if trial % 4 == 0 else 40, (), generator=generator))
            kept = torch.randperm(len(modules), generator=generator).tolist()[: 1 + trial % 8]
            kept = [*[k for k in kept if k != index], index]
            stack = _stack([modules[k] for k in kept])
            own = len(kept) - 1
            big_y, big_x = _rows(others + 1, generator)
            adapters = torch.randint(-1, len(kept), (others + 1,), generator=generator)
            if trial % 3 == 0:
                adapters = adapters.sort().values
            at = int(torch.randint(0, others + 1, (), generator=generator))
            big_y[at], big_x[at], adapters[at] = y[0], x[0], own
            together = _added(big_y, big_x, stack, adapters)
            assert torch.equal(together[at], alone[0]), (index, trial)


def test_long_run_and_single_row_give_the_same_bits(generator: torch.Generator) -> None:
    stack = _stack(_modules(generator))
    y, x = _rows(400, generator)
    adapters = torch.tensor([2] * 398 + [5, -1])
    assert LoraPlan(adapters, stack.num_adapters).for_stack(stack).runs
    together = _added(y, x, stack, adapters)
    for row in (0, 3, 397, 398):
        alone = _added(y[row : row + 1], x[row : row + 1], stack, adapters[row : row + 1])
        assert torch.equal(together[row], alone[0])


def test_base_rows_stay_as_they_were(generator: torch.Generator) -> None:
    stack = _stack(_modules(generator))
    y, x = _rows(65, generator)
    adapters = torch.randint(-1, len(RANKS), (65,), generator=generator)
    added = _added(y, x, stack, adapters)
    assert torch.equal(added[adapters == -1], y[adapters == -1])
    assert not torch.equal(added, y)
    assert torch.equal(_added(y, x, stack, torch.full((65,), -1)), y)


@pytest.mark.parametrize("factor", ["lora_a", "lora_b"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("count", [9, 900])
def test_non_finite_adapter_reaches_no_other_row(
    count: int, value: float, factor: str, generator: torch.Generator
) -> None:
    modules = _modules(generator)
    y, x = _rows(count, generator)
    adapters = torch.arange(count) % 4 - 1 if count < 100 else torch.arange(count) // 300
    clean = _added(y, x, _stack(modules), adapters)
    part = modules[1].slices[0]
    assert part is not None
    damaged = {name: getattr(part, name).clone() for name in ("lora_a", "lora_b")}
    damaged[factor][0, 0] = value
    modules[1] = LoraModule((replace(part, **damaged), *modules[1].slices[1:]))
    poisoned = _added(y, x, _stack(modules), adapters)
    others = adapters != 1
    assert torch.equal(poisoned[others], clean[others])
    assert not poisoned[~others][:, : SIZES[0]].isfinite().all(dim=1).any()
    assert torch.equal(poisoned[~others][:, SIZES[0] :], clean[~others][:, SIZES[0] :])


def test_poisoned_activations_stay_in_their_row(generator: torch.Generator) -> None:
    stack = _stack(_modules(generator))
    y, x = _rows(9, generator)
    adapters = torch.arange(9) % 4 - 1
    clean = _added(y, x, stack, adapters)
    x[2] = float("nan")
    added = _added(y, x, stack, adapters)
    assert torch.equal(added[torch.arange(9) != 2], clean[torch.arange(9) != 2])
    assert added[2].isnan().all()


def test_absent_modules_slices_and_rank_zero_add_nothing(generator: torch.Generator) -> None:
    ranks: tuple[tuple[int | None, ...], ...] = ((4, None, 0), (0, 0, 0), (None, 7, None))
    modules: list[LoraModule | None] = [
        random_module(row, SIZES, IN_FEATURES, generator=generator) for row in ranks
    ]
    stack = _stack([*modules, None])
    y, x = _rows(5, generator)
    adapters = torch.tensor([0, 1, 2, 3, -1])
    expected = y.clone()
    reference.lora_add_(expected, x, stack, adapters)
    added = _added(y, x, stack, adapters)
    assert is_close(added, expected, torch.float32)
    assert torch.equal(added[[1, 3, 4]], y[[1, 3, 4]])
    assert torch.equal(added[0, SIZES[0] :], y[0, SIZES[0] :])


def test_empty_batch_and_empty_stack_do_nothing(generator: torch.Generator) -> None:
    stack = _stack(_modules(generator))
    lora_add_(torch.empty(0, 160), torch.empty(0, IN_FEATURES), stack, torch.empty(0).long())
    y, x = _rows(3, generator)
    assert torch.equal(_added(y, x, _stack([None]), torch.tensor([0, -1, 0])), y)
    assert torch.equal(_added(y, x, _stack([]), torch.tensor([-1, -1, -1])), y)


def test_plan_is_shared_by_stacks_of_equal_ranks(generator: torch.Generator) -> None:
    first, second = _stack(_modules(generator)), _stack(_modules(generator))
    plan = LoraPlan(torch.arange(4), len(RANKS))
    assert plan.for_stack(first) is plan.for_stack(second)


def test_refuses_what_does_not_fit(generator: torch.Generator) -> None:
    modules = _modules(generator)
    stack = _stack(modules)
    y, x = _rows(2, generator)
    with pytest.raises(KernelInputError, match="active adapters"):
        lora_add_(y, x, stack, torch.tensor([0, 8]))
    with pytest.raises(KernelInputError, match="stack again"):
        lora_add_(y, x, stack, LoraPlan(torch.tensor([0, 0]), 1))
    with pytest.raises(ShapeError):
        lora_add_(y[:1], x, stack, torch.tensor([0, 0]))
    with pytest.raises(DtypeError):
        lora_add_(y, x.double(), stack, torch.tensor([0, 0]))
    with pytest.raises(ShapeError, match="adapter 0 slice 0"):
        stack_modules(modules, (97, 32, 32), IN_FEATURES, torch.float32)
    with pytest.raises(ShapeError, match="slices"):
        stack_modules(modules, (96, 32), IN_FEATURES, torch.float32)
