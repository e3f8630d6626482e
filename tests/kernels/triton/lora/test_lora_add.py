"""Batched LoRA on a GPU, interpreted: right for any mix, and a row sees its own adapter only."""

from dataclasses import replace

import pytest
import torch

from tenora_kernels.errors import DtypeError, KernelInputError, ShapeError
from tenora_kernels.lora import LoraModule, LoraPlan, stack_modules
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.triton_ops import lora_add_
from tenora_kernels.testing import is_close, is_far, random_module
from tests.kernels.triton.lora.trial import trial_of, trial_of_modules

SIZES = (96, 32, 33)
IN_FEATURES = 72
RANKS = (1, 3, 8, 16, 63, 128, 5)
THREE_EACH = [[rank] * 3 for rank in RANKS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 63, 65])
def test_equals_float64_for_mixed_ranks(
    count: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    trial = trial_of(THREE_EACH, SIZES, IN_FEATURES, generator, dtype)
    y, x = trial.rows(count, generator)
    adapters = torch.arange(count) % (len(RANKS) + 1) - 1 if count > 1 else torch.tensor([4])
    expected = trial.expected(y, x, adapters)
    assert is_far(y, expected, dtype)
    assert is_far(trial.expected(y, x, (adapters + 2) % len(RANKS)), expected, dtype)
    assert is_close(trial.added(y, x, adapters), expected, dtype)


def test_wrong_scaling_would_be_seen(generator: torch.Generator) -> None:
    module = random_module([8], (32,), 24, generator=generator)
    part = module.slices[0]
    assert part is not None
    twice = LoraModule((replace(part, scaling=2 * part.scaling),))
    trial, wrong = (trial_of_modules([m], (32,), 24) for m in (module, twice))
    y, x = trial.rows(5, generator)
    adapters = torch.zeros(5, dtype=torch.int32)
    expected = trial.expected(y, x, adapters)
    assert is_far(wrong.added(y, x, adapters), expected, torch.float32)
    assert is_close(trial.added(y, x, adapters), expected, torch.float32)


def test_all_ranks_in_one_launch(generator: torch.Generator) -> None:
    ranks = [[first, first + 32, first + 64, first + 96] for first in range(1, 33)]
    trial = trial_of(ranks, (9, 8, 3, 1), 24, generator)
    y, x = trial.rows(40, generator)
    adapters = torch.cat([torch.randperm(32, generator=generator), torch.full((8,), -1)])
    expected = trial.expected(y, x, adapters)
    assert is_far(trial.expected(y, x, adapters.roll(1)), expected, torch.float32)
    assert is_close(trial.added(y, x, adapters), expected, torch.float32)


@pytest.mark.parametrize("count", [300, 2049, 4097])
def test_large_tiles_of_prefill(count: int, generator: torch.Generator) -> None:
    trial = trial_of([[9, 17], [40, None]], (16, 40), 40, generator, torch.float16)
    y, x = trial.rows(count, generator)
    adapters = torch.tensor([0] * 130 + [-1] * 20 + [1] * (count - 150))
    plan = trial.plan(count, is_batch_invariant=False)
    expected = trial.expected(y, x, adapters)
    assert is_far(y, expected, torch.float16)
    assert is_close(trial.added(y, x, adapters, plan), expected, torch.float16)
    assert plan.tiling.tile_rows == (128 if count > 4096 else 64)


def test_inputs_of_many_splits(generator: torch.Generator) -> None:
    trial = trial_of([[4], [20]], (40,), 1100, generator)
    y, x = trial.rows(3, generator)
    adapters = torch.tensor([1, 0, 1])
    expected = trial.expected(y, x, adapters)
    x_short = x.clone()
    x_short[:, 512:1024] = 0
    assert is_far(trial.expected(y, x_short, adapters), expected, torch.float32)
    assert is_close(trial.added(y, x, adapters), expected, torch.float32)


def test_row_has_the_same_bits_in_any_batch(generator: torch.Generator) -> None:
    """Alone, in decode and in prefill, where one program adds all splits itself."""
    trial = trial_of([[20], [3], [16]], (40,), 600, generator)
    y, x = trial.rows(1, generator)
    alone = trial.added(y, x, torch.tensor([0]))
    for count in (2, 17, 70, 260):
        big_y, big_x = trial.rows(count, generator)
        adapters = torch.randint(-1, 3, (count,), generator=generator)
        at = int(torch.randint(0, count, (), generator=generator))
        big_y[at], big_x[at], adapters[at] = y[0], x[0], 0
        assert torch.equal(trial.added(big_y, big_x, adapters)[at], alone[0]), count


def test_base_rows_stay_and_a_base_only_batch_launches_nothing(generator: torch.Generator) -> None:
    trial = trial_of(THREE_EACH, SIZES, IN_FEATURES, generator)
    y, x = trial.rows(40, generator)
    adapters = torch.randint(-1, len(RANKS), (40,), generator=generator)
    added = trial.added(y, x, adapters)
    assert torch.equal(added[adapters == -1], y[adapters == -1])
    plan = trial.plan(40)
    assert torch.equal(trial.added(y, x, torch.full((40,), -1), plan), y)
    assert (plan.is_base_only, plan.num_tiles) == (True, 0)
    assert plan.workspace.isnan().all()


@pytest.mark.parametrize("factor", ["lora_a", "lora_b"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_adapter_reaches_no_other_row(
    value: float, factor: str, generator: torch.Generator
) -> None:
    modules = [random_module([9, 4], (24, 8), 24, generator=generator) for _ in range(3)]
    trial = trial_of_modules(modules, (24, 8), 24)
    y, x = trial.rows(40, generator)
    adapters = torch.arange(40) % 4 - 1
    clean = trial.added(y, x, adapters)
    part = modules[1].slices[0]
    assert part is not None
    getattr(part, factor)[0, 0] = value
    damaged = trial_of_modules(modules, (24, 8), 24).added(y, x, adapters)
    others = adapters != 1
    assert torch.equal(damaged[others], clean[others])
    assert not damaged[~others][:, :24].isfinite().all(dim=1).any()
    assert torch.equal(damaged[~others][:, 24:], clean[~others][:, 24:])


def test_poisoned_activations_stay_in_their_row(generator: torch.Generator) -> None:
    trial = trial_of([[9, 4]] * 2, (24, 8), 24, generator)
    y, x = trial.rows(20, generator)
    adapters = torch.arange(20) % 2
    clean = trial.added(y, x, adapters)
    x[2] = float("nan")
    added = trial.added(y, x, adapters)
    kept = torch.arange(20) != 2
    assert torch.equal(added[kept], clean[kept])
    assert added[2].isnan().all()


def test_absent_slices_and_rank_zero_add_nothing(generator: torch.Generator) -> None:
    trial = trial_of([(4, None, 0), (0, 0, 0), (None, 7, None)], (24, 8, 8), 24, generator)
    y, x = trial.rows(4, generator)
    adapters = torch.tensor([0, 1, 2, -1])
    added = trial.added(y, x, adapters)
    assert is_close(added, trial.expected(y, x, adapters), torch.float32)
    assert torch.equal(added[[1, 3]], y[[1, 3]])
    assert torch.equal(added[0, 24:], y[0, 24:])


def test_takes_the_same_arguments_as_the_other_backends(generator: torch.Generator) -> None:
    trial = trial_of([[9, 4]] * 2, (24, 8), 24, generator)
    y, x = trial.rows(5, generator)
    adapters = torch.arange(5) % 3 - 1
    for rows in (adapters, LoraPlan(adapters, 2)):
        result = y.clone()
        lora_add_(result, x, trial.stack, rows)
        assert is_close(result, trial.expected(y, x, adapters), torch.float32)
    lora_add_(y[:0], x[:0], trial.stack, adapters[:0])
    untouched = y.clone()
    lora_add_(
        untouched, x, stack_modules([None], (24, 8), 24, torch.float32), adapters.clamp(max=0)
    )
    assert torch.equal(untouched, y)


def test_refuses_what_does_not_fit(generator: torch.Generator) -> None:
    trial = trial_of([[9, 4]] * 2, (24, 8), 24, generator)
    y, x = trial.rows(2, generator)
    plan = trial.plan(2)
    plan.assign(torch.tensor([0, 1]))
    with pytest.raises(ShapeError):
        lora_add_(y[:1], x, trial.pool, plan)
    with pytest.raises(ShapeError, match="neighbouring"):
        lora_add_(y, torch.empty(24, 2).T, trial.pool, plan)
    with pytest.raises(DtypeError):
        lora_add_(y, x.double(), trial.pool, plan)
    other = trial_of([[9, 4]] * 3, (24, 8), 24, generator)
    with pytest.raises(KernelInputError, match="2 adapters"):
        lora_add_(y, x, other.pool, plan)
    with pytest.raises(KernelInputError, match="room for 2"):
        plan.assign(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ShapeError, match="agree"):
        DeviceLoraPlan([trial.pool, other.pool], 2)
    wide = trial_of([[100, 4]] * 2, (24, 8), 24, generator)
    with pytest.raises(ShapeError, match="every pool"):
        lora_add_(y, x, wide.pool, plan)
