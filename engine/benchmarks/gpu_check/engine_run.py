"""The engine's own decode and prefill steps with an 8B-shaped random model.

The same `StepExecutor`, graphs, buffers and pools that serve requests; only sequences and the
scheduler are missing. Tokens of graphs are compared with those of eager steps.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from gpu_check.random_model import model_config, random_adapter, random_transformer
from gpu_check.rates import Rates, copy_rate, matrix_rate
from gpu_check.records import Recorder
from gpu_check.shapes import Shapes
from gpu_check.timing import Timer
from tenora_engine.core.adapters.device_adapters import DeviceAdapters
from tenora_engine.core.adapters.host_layout import in_device_layout
from tenora_engine.core.adapters.weights import AdapterWeights
from tenora_engine.core.model_runner.forward_batch import BatchRow
from tenora_engine.core.model_runner.gpu.executor import StepExecutor
from tenora_engine.core.model_runner.gpu.step_buffers import Draw, StepLimits
from tenora_engine.core.model_runner.kv_memory import allocate_kv, kv_block_bytes
from tenora_kernels.lora import LoraModule, LoraSlice

# shares of equal tokens: with one kernel for both, and where products may round differently
SAME_KERNELS, OTHER_ROUNDING = 0.99, 0.8
MEMORY_SHARE = 0.8


class EngineRun:
    """One model, its adapters and its executor; every measurement guarded by itself."""

    def __init__(self, recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
        self._recorder = recorder
        self._shapes = shapes
        self._device = device
        self._timer = Timer(device, repeats=shapes.repeats)
        self._rng = random.Random(5)
        self._rates = Rates(
            copy_rate(shapes, device, self._timer), matrix_rate(shapes, device, self._timer)
        )
        self._blocks_per_row = -(-(shapes.context_tokens + 64) // shapes.block_size)
        self._is_ready = False
        self._step_ms: dict[tuple[int, int], float] = {}

    def run(self) -> None:
        """Correctness first, then times."""
        attempt, counts = self._recorder.attempt, (0, *self._shapes.adapter_counts)
        attempt("setting up", "", self._set_up, is_check=True)
        if not self._is_ready:
            return
        for batch in self._batches:
            compare = partial(self._compare, batch)
            attempt("graph equals eager", f"batch {batch}", compare, is_check=True)
        for batch, count in product(self._batches, counts):
            if count <= batch:
                work = partial(self._time_decode, batch, count)
                attempt("decode step", self._label(batch, count), work)
        for count in (0, 1):
            attempt("prefill", f"{count} adapters", partial(self._time_prefill, count))
        attempt("adapter load", "", self._time_load)

    def _set_up(self) -> None:
        s, device = self._shapes, self._device
        model = random_transformer(s, device)
        num_adapters = max(s.adapter_counts)
        limits = StepLimits(
            max_rows=max(s.batches),
            max_tokens=max(s.prefill_tokens, *s.batches),
            max_blocks_per_row=max(self._blocks_per_row, -(-s.prefill_tokens // s.block_size)),
            block_size=s.block_size,
        )
        config = model_config(s)
        self._adapters = DeviceAdapters(
            config, s.dtype, device,
            num_slots=num_adapters,
            capacity_ranks=num_adapters * -(-s.lora_rank // 8) * 8,
            max_rank=s.lora_rank,
            max_tokens=limits.max_tokens,
        )  # fmt: skip
        for index in range(num_adapters):
            self._adapters.load(index, random_adapter(s, s.lora_rank, device, seed=index))
        self._batches = self._batches_that_fit()
        num_blocks = max(self._batches) * self._blocks_per_row + limits.max_blocks_per_row
        kv = allocate_kv(config, num_blocks, s.block_size, s.dtype, device)
        for layer in kv:
            layer.keys.normal_()
            layer.values.normal_()
        order = self._rng.sample(range(num_blocks), num_blocks)
        size = self._blocks_per_row
        self._tables = [order[i * size : (i + 1) * size] for i in range(max(self._batches))]
        self._prefill_table = order[-limits.max_blocks_per_row :]
        self._executor = StepExecutor(model, kv, self._adapters, limits, device)
        self._executor.record(self._batches)
        self._is_ready = True

    def _batches_that_fit(self) -> list[int]:
        s = self._shapes
        if self._device.type != "cuda":
            return list(s.batches)
        free, _ = torch.cuda.mem_get_info()
        per_row = self._blocks_per_row * kv_block_bytes(model_config(s), s.block_size, s.dtype)
        return [batch for batch in s.batches if batch * per_row < MEMORY_SHARE * free]

    def _rows(self, batch: int, count: int, *, step: int = 0, seed: int = 0) -> list[BatchRow]:
        """One decode step: `count` adapters in turn, none for 0; the same tokens for a seed."""
        rng = random.Random(1000 * seed + step)
        start = self._shapes.context_tokens + step
        return [
            BatchRow(
                (rng.randrange(self._shapes.vocab_size),),
                start,
                self._tables[row],
                row % count if count else -1,
                1,
            )
            for row in range(batch)
        ]

    def _tokens(self, steps: Sequence[list[BatchRow]], *, graphs: bool) -> list[int | None]:
        self._executor.uses_graphs = graphs
        try:
            return [t for rows in steps for t in self._executor.run(rows, [Draw()] * len(rows))]
        finally:
            self._executor.uses_graphs = True

    def _compare(self, batch: int) -> None:
        """The same inputs through graphs and eager steps: base, all adapters, half, padded."""
        count = min(batch, max(self._shapes.adapter_counts))
        steps = range(self._shapes.decode_steps)
        base = [self._rows(batch, 0, step=step) for step in steps]
        lora = [self._rows(batch, count, step=step) for step in steps]
        half = [
            [replace(row, adapter_index=-1) if i % 2 else row for i, row in enumerate(rows)]
            for rows in lora
        ]
        tokens = {}
        for name, rows in (("base", base), ("LoRA", lora), ("half LoRA", half)):
            tokens[name] = self._tokens(rows, graphs=True)
            eager = self._tokens(rows, graphs=False)
            self._claim_equal(f"graph equals eager, {name}", batch, tokens[name], eager)
        odd = [i for i in range(len(tokens["base"])) if i % batch % 2]
        if odd:
            unadapted = [tokens["half LoRA"][i] for i in odd]
            expected = [tokens["base"][i] for i in odd]
            # the neighbours of a row have adapters now, and the row has the same numbers
            self._claim_equal("rows without LoRA beside LoRA", batch, unadapted, expected)
        if batch > 2:
            fewer = [rows[:-1] for rows in lora]
            padded = self._tokens(fewer, graphs=True)
            eager = self._tokens(fewer, graphs=False)
            self._claim_equal("padded graph equals eager", batch - 1, padded, eager, OTHER_ROUNDING)
        changed = sum(a != b for a, b in zip(tokens["base"], tokens["LoRA"], strict=True))
        finite = None not in tokens["base"] + tokens["LoRA"]
        detail = f"{changed} of {len(tokens['base'])} tokens differ from base, finite: {finite}"
        self._recorder.claim(
            "adapters change tokens", f"batch {batch}", holds=changed > 0 and finite, detail=detail
        )

    def _claim_equal(
        self,
        name: str,
        batch: int,
        got: Sequence[int | None],
        expected: Sequence[int | None],
        least: float = SAME_KERNELS,
    ) -> None:
        equal = sum(a == b for a, b in zip(got, expected, strict=True)) / len(expected)
        detail = f"{equal:.1%} of {len(expected)} tokens are equal, {least:.0%} are asked for"
        self._recorder.claim(name, f"batch {batch}", holds=equal >= least, detail=detail)

    def _label(self, batch: int, count: int) -> str:
        rank = self._shapes.lora_rank
        return f"batch {batch}, {f'{count} x rank {rank}' if count else 'base'}"

    def _time_decode(self, batch: int, count: int) -> None:
        rows, draws = self._rows(batch, count), [Draw()] * batch
        executor, label = self._executor, self._label(batch, count)
        step_ms = self._timer.wall_ms(lambda: executor.run(rows, draws))
        graph_ms = self._timer.ms(
            lambda: executor.graphs.replay(batch, has_lora=count > 0), flush=False
        )
        executor.uses_graphs = False
        try:
            eager_ms = self._timer.wall_ms(lambda: executor.run(rows, draws))
        finally:
            executor.uses_graphs = True
        self._step_ms[batch, count] = step_ms
        share = self._floor_bytes(batch, count) / self._rates.copy_bytes_per_s / (graph_ms * 1e-3)
        figure = self._recorder.figure
        figure("decode graph", label, graph_ms, "ms", share=share, share_of="of copy bandwidth")
        figure("decode step", label, step_ms, "ms", detail=f"{batch / step_ms * 1e3:.0f} tokens/s")
        figure(
            "decode step, eager",
            label,
            eager_ms,
            "ms",
            share=eager_ms / step_ms,
            share_of="of graph",
        )
        if count and (batch, 0) in self._step_ms:
            overhead = step_ms / self._step_ms[batch, 0] - 1
            target = "<= 5%" if count == 1 else "<= 20%" if count == batch == 32 else ""
            figure("LoRA overhead", label, 100 * overhead, "%", target=target)

    def _floor_bytes(self, batch: int, count: int) -> float:
        """What a decode step must read: weights, keys and values, adapters; each once."""
        s = self._shapes
        products = sum(size * sum(slices) for size, slices in s.modules.values())
        weights = s.num_layers * products + s.vocab_size * s.hidden_size
        cached = 2 * s.num_layers * s.num_kv_heads * s.head_dim * batch * s.context_tokens
        per_rank = sum(len(slices) * size + sum(slices) for size, slices in s.modules.values())
        lora = count * s.lora_rank * s.num_layers * per_rank
        return (weights + cached + lora) * s.dtype.itemsize

    def _time_prefill(self, count: int) -> None:
        s = self._shapes
        token_ids = [self._rng.randrange(s.vocab_size) for _ in range(s.prefill_tokens)]
        row = BatchRow(token_ids, 0, self._prefill_table, 0 if count else -1, 1)
        ms = self._timer.wall_ms(lambda: self._executor.run([row], [Draw()]))
        products = sum(size * sum(slices) for size, slices in s.modules.values())
        flops = 2 * s.num_layers * products * s.prefill_tokens
        share = flops / self._rates.flop_per_s / (ms * 1e-3)
        label = f"{s.prefill_tokens} tokens, {'1 adapter' if count else 'base'}"
        figure = self._recorder.figure
        figure("prefill", label, ms, "ms", share=share, share_of="of matrix rate")

    def _time_load(self) -> None:
        s = self._shapes
        given = _on_host(random_adapter(s, s.lora_rank, self._device, seed=0))
        weights = in_device_layout(given, pinned=self._device.type == "cuda")
        ms = self._timer.wall_ms(lambda: self._adapters.load(0, weights))
        rate = weights.size_bytes / ms * 1e3 / 1e9
        label = f"rank {s.lora_rank}, {weights.size_bytes / 1e6:.3g} MB"
        self._recorder.figure("adapter load", label, ms, "ms", detail=f"{rate:.2g} GB/s")


def _on_host(weights: AdapterWeights) -> AdapterWeights:
    """The same factors in host memory, as a canonical file gives them."""

    def module(given: LoraModule | None) -> LoraModule | None:
        if given is None:
            return None
        return LoraModule(
            tuple(
                LoraSlice(part.lora_a.cpu(), part.lora_b.cpu(), part.scaling) if part else None
                for part in given.slices
            )
        )

    layers = tuple({name: module(part) for name, part in layer.items()} for layer in weights.layers)
    return replace(weights, layers=layers)
