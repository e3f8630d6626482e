"""Times of single kernels on the shapes of a decode step, as shares of what must be moved.

A share of 100 % means: as fast as a plain copy of the bytes that the kernel must read and write.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from gpu_check.rates import Rates, measure_rates
from gpu_check.records import Recorder
from gpu_check.shapes import Shapes
from gpu_check.timing import Timer
from tenora_kernels.activation import silu_mul
from tenora_kernels.attention import paged_attention
from tenora_kernels.attention.device_batch import DeviceAttentionBatch
from tenora_kernels.linear.triton_ops import linear
from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import LoraPool
from tenora_kernels.lora.triton_ops import lora_expand_, lora_shrink
from tenora_kernels.norm import rms_norm
from tenora_kernels.rope import apply_rope
from tenora_kernels.sampling import finite_rows, greedy, sample
from tenora_kernels.testing import random_module


class KernelTimes:
    """Every figure, each guarded by itself."""

    def __init__(self, recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
        self._recorder = recorder
        self._shapes = shapes
        self._device = device
        self._timer = Timer(device, repeats=shapes.repeats)
        self._rates = Rates(1.0, 1.0)

    def run(self) -> None:
        """The rates first: shares need them."""
        attempt, s = self._recorder.attempt, self._shapes
        attempt("rates", "", self._measure_rates)
        for batch in s.batches:
            work = partial(self._decode_attention, batch)
            attempt("paged decode attention", f"batch {batch}", work)
        for count, batch in product(s.adapter_counts, s.batches):
            if count <= batch:
                shape = f"batch {batch}, {count} x rank {s.lora_rank}"
                attempt("lora", shape, partial(self._lora, count, batch, shape))
        for batch in s.batches:
            attempt("products", f"batch {batch}", partial(self._products, batch))
            attempt("small operators", f"batch {batch}", partial(self._small_operators, batch))

    def _measure_rates(self) -> None:
        self._rates = measure_rates(self._recorder, self._shapes, self._device, self._timer)

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self._device).to(self._shapes.dtype)

    def _figure(
        self, name: str, shape: str, work: Callable[[], object], num_bytes: float, **more: Any
    ) -> float:
        """Measure and record; returns milliseconds."""
        ms = self._timer.ms(work)
        self._record(name, shape, ms, num_bytes, **more)
        return ms

    def _record(self, name: str, shape: str, ms: float, num_bytes: float, **more: Any) -> None:
        share = num_bytes / (ms * 1e-3) / self._rates.copy_bytes_per_s
        self._recorder.figure(
            name, shape, ms * 1e3, "us", share=share, share_of="of copy bandwidth", **more
        )

    def _decode_attention(self, batch: int) -> None:
        s = self._shapes
        lengths = {s.context_tokens, 4 * s.context_tokens} if batch <= 32 else {s.context_tokens}
        for length in sorted(lengths):
            blocks = -(-length // s.block_size)
            caches = [
                self._draw(s.num_kv_heads, batch * blocks, s.block_size, s.head_dim) for _ in "kv"
            ]
            order = torch.randperm(batch * blocks).view(batch, blocks).to(torch.int32)
            rows = DeviceAttentionBatch(
                block_tables=order.to(self._device),
                seq_lens=torch.full((batch,), length, dtype=torch.int32).to(self._device),
                cu_query_lens=torch.arange(batch + 1, dtype=torch.int32).to(self._device),
                max_seq_len=length,
                max_query_len=1,
            )
            q = self._draw(batch, s.num_q_heads, s.head_dim)
            work = _attention_call(q, caches, rows, s.head_dim**-0.5)
            moved = 2 * caches[0].nbytes + 2 * q.nbytes
            target = ">= 80%" if batch * length >= 32 * 1024 else ""
            name = "paged decode attention"
            self._figure(name, f"batch {batch}, context {length}", work, moved, target=target)

    def _lora(self, count: int, batch: int, shape: str) -> None:
        """Shrink and expand in all fused products of a layer, `count` distinct adapters."""
        s = self._shapes
        adapter = (torch.arange(batch) % count).to(torch.int32).to(self._device)
        total = {"shrink": [0.0, 0.0], "expand": [0.0, 0.0]}
        for name in s.modules:
            for kind, (ms, moved) in self._lora_product(name, adapter, count, shape).items():
                total[kind][0] += ms
                total[kind][1] += moved
        for kind, (ms, moved) in total.items():
            self._record(f"lora {kind}, one layer", shape, ms, moved)

    def _lora_product(
        self, name: str, adapter: Tensor, count: int, shape: str
    ) -> dict[str, tuple[float, float]]:
        """Milliseconds and bytes of one fused product's shrink and expand."""
        s, batch = self._shapes, len(adapter)
        in_features, slices = s.modules[name]
        generator = torch.Generator().manual_seed(3)
        pool = LoraPool(
            slices, in_features, count, count * -(-s.lora_rank // 8) * 8, s.lora_rank,
            s.dtype, self._device,
        )  # fmt: skip
        ranks = [s.lora_rank] * len(slices)
        module = random_module(ranks, slices, in_features, generator=generator, dtype=s.dtype)
        for index in range(count):
            pool.load(index, module)
        plan = DeviceLoraPlan([pool], batch)
        plan.assign(adapter)
        if name == "qkv":
            self._figure("lora plan", shape, partial(plan.assign, adapter), 4 * batch)
        x, y = self._draw(batch, in_features), self._draw(batch, sum(slices))
        item, ranks_read = s.dtype.itemsize, count * s.lora_rank
        moved = {
            "shrink": (ranks_read * len(slices) + batch) * in_features * item,
            "expand": (ranks_read + 2 * batch) * sum(slices) * item,
        }
        works = {
            "shrink": partial(lora_shrink, x, pool, plan),
            "expand": partial(lora_expand_, y, pool, plan),
        }
        return {
            kind: (
                self._figure(f"lora {kind} {name}", shape, work, moved[kind], is_detail=True),
                moved[kind],
            )
            for kind, work in works.items()
        }

    def _products(self, batch: int) -> None:
        """The largest product of a layer: the vendor's, and the one that a row cannot notice."""
        s = self._shapes
        in_features, slices = s.modules["gate_up"]
        x, weight = self._draw(batch, in_features), self._draw(sum(slices), in_features)
        moved = weight.nbytes + x.nbytes + batch * sum(slices) * s.dtype.itemsize
        shape = f"batch {batch}"
        self._figure("linear gate_up, vendor", shape, partial(F.linear, x, weight), moved)
        self._figure("linear gate_up, invariant", shape, partial(linear, x, weight), moved)

    def _small_operators(self, batch: int) -> None:
        s = self._shapes
        shape = f"batch {batch}"
        x, weight = self._draw(batch, s.hidden_size), self._draw(s.hidden_size)
        self._figure("rms_norm", shape, partial(rms_norm, x, weight, 1e-5), 2 * x.nbytes)
        qkv = self._draw(batch, sum(s.qkv_sizes))
        q, k, _ = torch.split(qkv, list(s.qkv_sizes), dim=1)
        q, k = q.view(batch, -1, s.head_dim), k.view(batch, -1, s.head_dim)
        tables = [self._draw(batch, s.head_dim) for _ in "cs"]
        rotated = 2 * (q.numel() + k.numel()) * s.dtype.itemsize
        self._figure("rope", shape, partial(apply_rope, q, k, *tables), rotated)
        gate_up = self._draw(batch, 2 * s.intermediate_size)
        self._figure("silu_mul", shape, partial(silu_mul, gate_up), 1.5 * gate_up.nbytes)
        logits = 3 * torch.randn(batch, s.vocab_size, device=self._device)
        self._figure("greedy", shape, partial(greedy, logits), logits.nbytes)
        self._figure("finite_rows", shape, partial(finite_rows, logits), logits.nbytes)
        ones = torch.ones(batch, device=self._device)
        uniform = torch.rand(batch, dtype=torch.float64).to(self._device)
        self._figure(
            "sample, top_p 0.9", shape, partial(sample, logits, ones, ones * 0.9, uniform),
            logits.nbytes,
        )  # fmt: skip


def _attention_call(
    q: Tensor, caches: Sequence[Tensor], rows: DeviceAttentionBatch, scale: float
) -> Callable[[], object]:
    return lambda: paged_attention(q, caches[0], caches[1], rows, scale=scale)  # type: ignore[arg-type]
