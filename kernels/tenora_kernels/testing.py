"""What the tests of every op share: tolerances, poisoned memory and ragged batches.

A tolerance is loosened by an ADR, not by a test.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_kernels.errors import KernelInputError
from tenora_kernels.lora.stack import LoraModule, LoraSlice

# largest |got - expected| / (1 + |expected|) by the dtype of an op's input
TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 2.5e-3,
    torch.bfloat16: 2e-2,
}
# sizes on both sides of every tile, block and vector width
ODD_SIZES = (1, 63, 65, 2049)


def error_of(got: Tensor, expected: Tensor) -> float:
    """Return the largest scaled difference; infinity where one is NaN and the other is not."""
    if got.shape != expected.shape:
        raise KernelInputError(f"shapes {tuple(got.shape)} and {tuple(expected.shape)} differ")
    if got.numel() == 0:
        return 0.0
    got, expected = got.double(), expected.double()
    if bool((got.isnan() != expected.isnan()).any()):
        return float("inf")
    difference = (got - expected).abs() / (1 + expected.abs())
    return float(difference.nan_to_num(nan=0.0).max())


def is_close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether two results agree within the tolerance of `dtype`."""
    return error_of(got, expected) <= TOLERANCES[dtype]


def is_far(wrong: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether a known wrong result fails by at least ten times the tolerance of `dtype`."""
    return error_of(wrong, expected) >= 10 * TOLERANCES[dtype]


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory that shows every read of what was never written: all NaN."""
    return torch.full(shape, float("nan"), dtype=dtype)


@dataclass(frozen=True, eq=False, slots=True)
class RaggedKv:
    """Sequences of different lengths in one poisoned pool, their blocks in shuffled order."""

    k_cache: Tensor  # [Hkv, num_blocks, block_size, D]
    v_cache: Tensor
    block_tables: tuple[tuple[int, ...], ...]
    keys: tuple[Tensor, ...]  # per sequence [len, Hkv, D]
    values: tuple[Tensor, ...]

    def slots(self, index: int) -> Tensor:
        """The slot of each position of one sequence: int64 [len]."""
        block_size = self.k_cache.shape[2]
        table = torch.tensor(self.block_tables[index])
        position = torch.arange(self.keys[index].shape[0])
        slots: Tensor = table[position // block_size] * block_size + position % block_size
        return slots


def ragged_kv(
    seq_lens: Sequence[int],
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    *,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> RaggedKv:
    """Return random keys and values of each sequence, placed in a pool that is NaN elsewhere."""
    needed = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables: list[tuple[int, ...]] = []
    for count in needed:
        tables.append(tuple(order[:count]))
        order = order[count:]

    def draw(length: int) -> Tensor:
        return torch.randn(length, num_kv_heads, head_dim, generator=generator).to(dtype)

    keys, values = (tuple(draw(length) for length in seq_lens) for _ in range(2))
    caches = [poisoned(num_kv_heads, num_blocks, block_size, head_dim, dtype=dtype) for _ in "kv"]
    ragged = RaggedKv(caches[0], caches[1], tuple(tables), keys, values)
    for index in range(len(seq_lens)):
        slots = ragged.slots(index)
        for cache, source in zip(caches, (keys[index], values[index]), strict=True):
            cache.view(num_kv_heads, -1, head_dim)[:, slots] = source.transpose(0, 1)
    return ragged


def random_module(
    ranks: Sequence[int | None],
    slice_sizes: Sequence[int],
    in_features: int,
    *,
    generator: torch.Generator,
    scaling: float = 0.5,
    dtype: torch.dtype = torch.float32,
) -> LoraModule:
    """Return one adapter's random factors, a rank per slice, None where not adapted."""

    def draw(rows: int, columns: int) -> Tensor:
        factor: Tensor = torch.randn(rows, columns, generator=generator) / max(columns, 1) ** 0.5
        return factor.to(dtype)

    return LoraModule(
        tuple(
            None if rank is None else LoraSlice(draw(rank, in_features), draw(size, rank), scaling)
            for rank, size in zip(ranks, slice_sizes, strict=True)
        )
    )
