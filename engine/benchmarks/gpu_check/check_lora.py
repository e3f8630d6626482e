"""Batched LoRA against the row-by-row specification in float64 on the CPU."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gpu_check.records import Recorder
from gpu_check.shapes import Shapes
from tenora_kernels.lora import LoraModule, LoraSlice, reference, stack_modules
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import LoraPool
from tenora_kernels.lora.triton_ops import lora_add_
from tenora_kernels.testing import TOLERANCES, error_of, random_module


def run_lora_checks(recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
    """Every fused product of the model, all ranks mixed, in batches of several sizes."""
    generator = torch.Generator().manual_seed(2)
    for name, (in_features, slices) in shapes.modules.items():
        for rows in (*shapes.batches, shapes.prefill_tokens // 4):
            case = _Case(shapes, in_features, slices, rows, generator)
            label = f"[{rows}, {in_features}] -> {sum(slices)}"
            check = partial(_check, recorder, case, f"lora_add_ {name}", label, device)
            recorder.attempt(f"lora_add_ {name}", label, check, is_check=True)


def _check(recorder: Recorder, case: "_Case", name: str, label: str, device: torch.device) -> None:
    """Compare with the specification, and a row alone with the same row in the batch."""
    pool = case.pool(device)
    got = case.run(pool, len(case.x))
    recorder.error(name, label, error_of(got, case.expected()), TOLERANCES[case.dtype])
    alone = case.run(pool, 1)
    recorder.claim(f"{name}: a row is alone", label, holds=torch.equal(alone[0], got[0]))


class _Case:
    """Adapters of all ranks, one without its first slice, and rows that use them in no order."""

    def __init__(
        self,
        shapes: Shapes,
        in_features: int,
        slices: Sequence[int],
        rows: int,
        generator: torch.Generator,
    ) -> None:
        self.slices = tuple(slices)
        self.in_features = in_features
        self.dtype = shapes.dtype
        self.modules = []
        for index, rank in enumerate(shapes.mixed_ranks):
            ranks: list[int | None] = [rank] * len(slices)
            if index == 1 and len(slices) > 1:
                ranks[0] = None
            self.modules.append(
                random_module(ranks, slices, in_features, generator=generator, dtype=shapes.dtype)
            )
        count = len(self.modules)
        self.adapter = torch.randint(-1, count, (rows,), generator=generator).to(torch.int32)
        self.adapter[0] = count - 1
        self.x = torch.randn(rows, in_features, generator=generator).to(shapes.dtype)
        self.y = torch.randn(rows, sum(slices), generator=generator).to(shapes.dtype)

    def pool(self, device: torch.device) -> LoraPool:
        """All adapters on the device, each at its index."""
        ranks = [part.rank for module in self.modules for part in module.slices if part]
        pool = LoraPool(
            self.slices, self.in_features, len(self.modules),
            sum(-(-rank // 8) * 8 for rank in ranks), max(ranks), self.dtype, device,
        )  # fmt: skip
        for index, module in enumerate(self.modules):
            pool.load(index, module)
        return pool

    def run(self, pool: LoraPool, rows: int) -> Tensor:
        """The first `rows` rows through the device."""
        plan = DeviceLoraPlan([pool], rows)
        plan.assign(self.adapter[:rows].to(pool.device))
        y = self.y[:rows].to(pool.device, copy=True)
        lora_add_(y, self.x[:rows].to(pool.device), pool, plan)
        return y.cpu()

    def expected(self) -> Tensor:
        """The specification's y, in float64."""
        wide = [
            LoraModule(
                tuple(
                    LoraSlice(part.lora_a.double(), part.lora_b.double(), part.scaling)
                    if part
                    else None
                    for part in module.slices
                )
            )
            for module in self.modules
        ]
        y = self.y.double()
        stack = stack_modules(wide, self.slices, self.in_features, torch.float64)
        reference.lora_add_(y, self.x.double(), stack, self.adapter.to(torch.int64))
        return y
