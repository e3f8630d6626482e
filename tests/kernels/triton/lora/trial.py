"""One launch over poisoned memory: every place that holds no operand is NaN, or no row's number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_kernels.lora import LoraModule, LoraStack, reference, stack_modules
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import LoraPool, pool_of_stack
from tenora_kernels.lora.triton_ops import lora_add_
from tenora_kernels.testing import poisoned, random_module


@dataclass(eq=False, slots=True)
class Trial:
    """The adapters of one module, as their specification holds them and on the device."""

    stack: LoraStack
    pool: LoraPool

    def expected(self, y: Tensor, x: Tensor, token_adapter: Tensor) -> Tensor:
        """The specification's answer in float64."""
        wide = y.double()
        reference.lora_add_(wide, x.double(), self.stack, token_adapter)
        return wide

    def added(
        self, y: Tensor, x: Tensor, token_adapter: Tensor, plan: DeviceLoraPlan | None = None
    ) -> Tensor:
        """What the kernels make of y, x and y being rows of wider memory."""
        plan = plan or self.plan(len(y))
        plan.assign(token_adapter)
        held_y, held_x = _rows_of_wider_memory(y), _rows_of_wider_memory(x)
        lora_add_(held_y, held_x, self.pool, plan)
        assert held_y._base is not None
        assert held_y._base[:, -1].isnan().all()
        return held_y.clone()

    def plan(self, max_tokens: int, *, is_batch_invariant: bool = True) -> DeviceLoraPlan:
        plan = DeviceLoraPlan(
            [self.pool], max(max_tokens, 1), is_batch_invariant=is_batch_invariant
        )
        plan.workspace.fill_(float("nan"))
        plan.rows.fill_(2**30)
        plan.tiles.fill_(2**20)
        return plan

    def rows(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randn(count, sum(self.stack.slice_sizes), generator=generator)
        x = torch.randn(count, self.stack.in_features, generator=generator)
        return y.to(self.stack.dtype), x.to(self.stack.dtype)


def trial_of(
    ranks: Sequence[Sequence[int | None]],
    slice_sizes: tuple[int, ...],
    in_features: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Trial:
    """Random adapters of these ranks, by adapter and slice, in a pool that was NaN before."""
    modules = [
        random_module(row, slice_sizes, in_features, generator=generator, dtype=dtype)
        for row in ranks
    ]
    return trial_of_modules(modules, slice_sizes, in_features, dtype)


def trial_of_modules(
    modules: Sequence[LoraModule | None],
    slice_sizes: tuple[int, ...],
    in_features: int,
    dtype: torch.dtype = torch.float32,
) -> Trial:
    stack = stack_modules(modules, slice_sizes, in_features, dtype)
    pool = pool_of_stack(stack, "cpu")
    pool.lora_a.fill_(float("nan"))
    pool.lora_b.fill_(float("nan"))
    for index, module in enumerate(modules):
        if module is not None:
            pool.load(index, module)
    return Trial(stack, pool)


def _rows_of_wider_memory(rows: Tensor) -> Tensor:
    memory = poisoned(rows.shape[0] + 2, rows.shape[1] + 3, dtype=rows.dtype)
    view = memory[1:-1, 1:-2]
    view.copy_(rows)
    return view
