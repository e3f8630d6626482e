"""Attention, the small operators and the deterministic product against float64 on the CPU."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from gpu_check.records import Recorder
from gpu_check.shapes import Shapes
from tenora_kernels import activation, attention, norm, rope, sampling
from tenora_kernels.attention import AttentionBatch
from tenora_kernels.attention import reference as attention_reference
from tenora_kernels.attention.device_batch import DeviceAttentionBatch
from tenora_kernels.linear import reference as linear_reference
from tenora_kernels.norm import reference as norm_reference
from tenora_kernels.rope import RopeRows, build_rope_table
from tenora_kernels.rope import reference as rope_reference
from tenora_kernels.sampling import reference as sampling_reference
from tenora_kernels.testing import TOLERANCES, error_of, ragged_kv

SAMPLING_ROWS = 48
# float32 and float64 sums may disagree about the token at a boundary, once in many rows
LEAST_EQUAL_DRAWS = 0.95


class OpChecks:
    """Every check draws on the CPU, runs on the device and compares on the CPU."""

    def __init__(self, recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
        self._recorder = recorder
        self._shapes = shapes
        self._device = device
        self._generator = torch.Generator().manual_seed(1)

    def run(self) -> None:
        """All checks, each guarded by itself."""
        checks: Sequence[tuple[str, Callable[[], None]]] = (
            ("rms_norm", self._norms),
            ("rope", self._rope),
            ("gated activations", self._activations),
            ("greedy", self._greedy),
            ("sample", self._sample),
            ("write_kv", self._write_kv),
            ("rotate_and_store", self._rotate_and_store),
            ("paged_attention", self._attention),
            ("deterministic linear", self._linear),
        )
        for name, check in checks:
            self._recorder.attempt(name, "", check, is_check=True)

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self._shapes.dtype)

    def _there(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.to(self._device) for tensor in tensors)

    def _compare(self, name: str, got: Tensor, expected: Tensor, shape: Sequence[int]) -> None:
        error = error_of(got.cpu(), expected)
        self._recorder.error(name, str(list(shape)), error, TOLERANCES[self._shapes.dtype])

    def _rows(self) -> Iterator[int]:
        yield from (1, 65, 2049) if self._device.type == "cuda" else (1, 5)

    def _norms(self) -> None:
        for rows in self._rows():
            x, residual = (self._draw(rows, self._shapes.hidden_size) for _ in range(2))
            weight = self._draw(self._shapes.hidden_size)
            x_there, residual_there, weight_there = self._there(x, residual, weight)
            got = norm.rms_norm(x_there, weight_there, 1e-5)
            wide = norm_reference.rms_norm(x.double(), weight.double(), 1e-5)
            self._compare("rms_norm", got, wide, x.shape)
            got, summed = norm.add_rms_norm(x_there, residual_there, weight_there, 1e-5)
            exact_sum = x + residual  # the operator rounds the sum first
            wide = norm_reference.rms_norm(exact_sum.double(), weight.double(), 1e-5)
            self._compare("add_rms_norm", got, wide, x.shape)
            self._compare("add_rms_norm sum", summed, exact_sum, x.shape)

    def _rope(self) -> None:
        s = self._shapes
        cos, sin = build_rope_table(s.head_dim, 4096, 500000.0)
        for rows in self._rows():
            qkv = self._draw(rows, sum(s.qkv_sizes))
            positions = torch.randint(0, 4096, (rows,), generator=self._generator)
            tables = [t[positions].to(s.dtype) for t in (cos, sin)]
            wide = rope_reference.apply_rope(
                *self._heads(qkv.double()), *(t.double() for t in tables)
            )
            got = rope.apply_rope(
                *self._heads(qkv.to(self._device)), *(t.to(self._device) for t in tables)
            )
            for name, mine, exact in zip("qk", got, wide, strict=True):
                self._compare(f"rope {name}", mine, exact, mine.shape)

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """q and k as the model passes them: strided views of one product's output."""
        s = self._shapes
        q, k, _ = torch.split(qkv, list(s.qkv_sizes), dim=1)
        rows = len(qkv)
        return q.view(rows, s.num_q_heads, s.head_dim), k.view(rows, s.num_kv_heads, s.head_dim)

    def _activations(self) -> None:
        from tenora_kernels.activation import reference

        for rows in self._rows():
            gate_up = self._draw(rows, 2 * self._shapes.intermediate_size)
            for name in ("silu_mul", "gelu_tanh_mul"):
                got = getattr(activation, name)(gate_up.to(self._device))
                self._compare(name, got, getattr(reference, name)(gate_up.double()), gate_up.shape)

    def _logits(self) -> Tensor:
        rows = SAMPLING_ROWS if self._device.type == "cuda" else 6
        return 3 * torch.randn(rows, self._shapes.vocab_size, generator=self._generator)

    def _greedy(self) -> None:
        logits = self._logits()
        logits[0, 3] = logits[0, 7] = 99.0  # equal ones: the lowest index wins
        got = sampling.greedy(logits.to(self._device)).cpu()
        holds = torch.equal(got, sampling_reference.greedy(logits))
        self._recorder.claim("greedy", str(list(logits.shape)), holds=holds)
        logits[1, 5], logits[2, 0] = float("nan"), float("inf")
        got = sampling.finite_rows(logits.to(self._device)).cpu()
        holds = torch.equal(got, sampling_reference.finite_rows(logits))
        self._recorder.claim("finite_rows", str(list(logits.shape)), holds=holds)

    def _sample(self) -> None:
        logits = self._logits()
        rows = len(logits)
        temperature = torch.linspace(0.3, 1.5, rows)
        top_p = torch.tensor([1.0, 0.9, 0.5])[torch.arange(rows) % 3]
        uniform = torch.rand(rows, generator=self._generator, dtype=torch.float64)
        arguments = (logits, temperature, top_p, uniform)
        expected = sampling_reference.sample(*arguments)
        got = sampling.sample(*(t.to(self._device) for t in arguments)).cpu()
        share = float((got == expected).double().mean())
        holds = share >= LEAST_EQUAL_DRAWS
        detail = f"{share:.0%} of the draws equal the reference"
        self._recorder.claim("sample", str(list(logits.shape)), holds=holds, detail=detail)

    def _write_kv(self) -> None:
        s = self._shapes
        kv = ragged_kv(
            [37, 20], s.num_kv_heads, s.head_dim, s.block_size, generator=self._generator
        )
        k, v = (torch.cat(parts).to(s.dtype) for parts in (kv.keys, kv.values))
        slots = torch.cat([kv.slots(0), kv.slots(1)])
        padded = torch.where(torch.arange(len(slots)) % 9 == 4, -1, slots)
        caches = [torch.full(kv.k_cache.shape, 7.0, dtype=s.dtype) for _ in "kv"]
        k_there, v_there, k_cache, v_cache, slots_there = self._there(k, v, *caches, padded)
        if self._device.type == "cpu":
            k_cache, v_cache = k_cache.clone(), v_cache.clone()
        attention.write_kv(k_there, v_there, k_cache, v_cache, slots_there)
        live = padded >= 0
        attention_reference.write_kv(k[live], v[live], caches[0], caches[1], padded[live])
        got = (k_cache.cpu(), v_cache.cpu())
        holds = all(torch.equal(a, b) for a, b in zip(got, caches, strict=True))
        self._recorder.claim("write_kv", str(list(k.shape)), holds=holds)

    def _rotate_and_store(self) -> None:
        s, rows = self._shapes, 37
        qkv = self._draw(rows, sum(s.qkv_sizes))
        positions = torch.randint(0, 4096, (rows,), generator=self._generator)
        slots = torch.randperm(4 * s.block_size, generator=self._generator)[:rows]
        # rounded as the kernel rounds them, so that only its arithmetic is compared
        tables = [t.to(s.dtype).float() for t in build_rope_table(s.head_dim, 4096, 500000.0)]
        cache = torch.zeros(s.num_kv_heads, 4, s.block_size, s.head_dim, dtype=s.dtype)

        def stored(qkv: Tensor, *more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            cos, sin, at, to, k_cache, v_cache = more
            q, k = self._heads(qkv)
            v = qkv[:, -s.qkv_sizes[2] :].view(rows, s.num_kv_heads, s.head_dim)
            operator = attention_reference if qkv.dtype == torch.float64 else attention
            rotated = operator.rotate_and_store(
                q, k, v, RopeRows(cos, sin, at), k_cache=k_cache, v_cache=v_cache, slot_mapping=to
            )
            return rotated, k_cache, v_cache

        inputs = (*tables, positions, slots)
        there = self._there(qkv.clone(), *inputs, cache.clone(), cache.clone())
        wide = [*tables, positions, slots, cache.double(), cache.double()]
        results = zip(("q", "k", "v"), stored(*there), stored(qkv.double(), *wide), strict=True)
        for name, got, expected in results:
            self._compare(f"rotate_and_store {name}", got, expected, got.shape)

    def _attention(self) -> None:
        context = self._shapes.context_tokens
        half = context // 2
        cases: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
            "decode": ([1, context, half + 1, 17, context - 1], [1] * 5, {}),
            "decode, window": ([1, context, half + 1], [1] * 3, {"sliding_window": half // 2}),
            "prefill": ([half, 33], [half, 33], {}),
            "mixed, soft cap": ([half, 40, 9, context], [half - 5, 1, 1, 7], {"soft_cap": 20.0}),
        }
        for name, (seq_lens, query_lens, rules) in cases.items():
            self._attention_case(name, seq_lens, query_lens, rules)

    def _attention_case(
        self, name: str, seq_lens: list[int], query_lens: list[int], rules: dict[str, Any]
    ) -> None:
        s = self._shapes
        kv = ragged_kv(
            seq_lens, s.num_kv_heads, s.head_dim, s.block_size,
            generator=self._generator, dtype=s.dtype,
        )  # fmt: skip
        host = AttentionBatch.build(query_lens, seq_lens, kv.block_tables, s.block_size)
        # room for more sequences than there are: the rest is padding, as in a graph
        batch = DeviceAttentionBatch.allocate(
            len(seq_lens) + 3, 2 * s.context_tokens, max(query_lens), s.block_size, self._device
        )
        batch.fill_(host)
        q = self._draw(sum(query_lens), s.num_q_heads, s.head_dim)
        scale = s.head_dim**-0.5
        q_there, k_cache, v_cache = self._there(q, kv.k_cache, kv.v_cache)
        there = cast("AttentionBatch", batch)  # the op of the bound backend takes this one
        got = attention.paged_attention(q_there, k_cache, v_cache, there, scale=scale, **rules)
        wide = [tensor.double() for tensor in (q, kv.k_cache, kv.v_cache)]
        expected = attention_reference.paged_attention(
            wide[0], wide[1], wide[2], host, scale=scale, **rules
        )
        self._compare(f"paged_attention {name}", got, expected, q.shape)

    def _linear(self) -> None:
        from tenora_kernels.linear.triton_ops import linear

        s = self._shapes
        for rows in self._rows():
            x, weight = self._draw(rows, s.hidden_size), self._draw(s.qkv_sizes[1], s.hidden_size)
            weight = weight / s.hidden_size**0.5
            on_device = x.to(self._device), weight.to(self._device)
            got = linear(*on_device)
            expected = linear_reference.linear(x.double(), weight.double())
            self._compare("deterministic linear", got, expected, x.shape)
            alone = linear(on_device[0][:1], on_device[1])
            self._recorder.claim(
                "linear: a row is alone", str([rows]), holds=torch.equal(alone, got[:1])
            )
