"""Adapter factors resident on a GPU: one pool for each fused module of each layer.

Memory is allocated once and never moves, so a captured graph keeps its pointers; loading and
unloading are copies. Rank rows live in pages of 8: no rank is padded to another, and the pool
never fragments. README.md has the layout.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tenora_kernels.errors import KernelInputError, PoolFullError, ShapeError
from tenora_kernels.lora.stack import LoraModule, LoraSlice, LoraStack
from tenora_kernels.lora.tiling import BLOCK_COLUMNS

PAGE_ROWS = 8
# a table entry: rank, scaling as the bits of a float32, then pages
TABLE_HEADER = 2


@dataclass(eq=False, slots=True)
class LoraPool:
    """The adapters of one fused module that are resident on `device`.

    `lora_index` 0 <= j < num_adapters names a place for one adapter; -1 in a step means none.

    Args: slice_sizes, the output rows of each projection; capacity_ranks, the sum of ranks that
    each slice has room for, ranks counted in pages of 8; max_rank, the largest rank of a slice;
    with_scale, whether adapters may scale outputs (DoRA); with_bias, whether they may add a bias.
    """

    slice_sizes: tuple[int, ...]
    in_features: int
    num_adapters: int
    capacity_ranks: int
    max_rank: int
    dtype: torch.dtype
    device: torch.device | str
    with_scale: bool = False
    with_bias: bool = False

    lora_a: Tensor = field(init=False)  # [slices * rows, in]
    lora_b: Tensor = field(init=False)  # per slice [rows, out_s], one after the other
    table: Tensor = field(init=False)  # int32 [num_adapters, slices, TABLE_HEADER + pages]
    out_scale: Tensor | None = field(init=False, default=None)  # float32 [num_adapters, out]
    out_bias: Tensor | None = field(init=False, default=None)  # float32 [num_adapters, out]
    slice_sizes_on_device: Tensor = field(init=False)  # int64 [slices]
    # by columns of a tile, int64 [tiles, 4]: slice, first column of y, columns left, place in B
    out_tiles: dict[int, Tensor] = field(init=False)
    ranks: list[tuple[int, ...]] = field(init=False)  # host copy of the table's ranks
    _free_pages: list[list[int]] = field(init=False)
    _pages: dict[tuple[int, int], list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        slices, out = len(self.slice_sizes), sum(self.slice_sizes)
        pages = -(-self.capacity_ranks // PAGE_ROWS)
        self.capacity_ranks = pages * PAGE_ROWS

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        self.lora_a = empty(slices * self.capacity_ranks, self.in_features, dtype=self.dtype)
        self.lora_b = empty(self.capacity_ranks * out, dtype=self.dtype)
        columns = TABLE_HEADER - (-self.max_rank // PAGE_ROWS)
        self.table = empty(self.num_adapters, slices, columns, dtype=torch.int32).zero_()
        self.slice_sizes_on_device = torch.tensor(self.slice_sizes, device=self.device)
        self.out_tiles = {size: self._out_tiles(size) for size in BLOCK_COLUMNS}
        if self.with_scale:
            self.out_scale = empty(self.num_adapters, out, dtype=torch.float32).fill_(1)
        if self.with_bias:
            self.out_bias = empty(self.num_adapters, out, dtype=torch.float32).zero_()
        self.ranks = [(0,) * slices] * self.num_adapters
        self._free_pages = [list(range(pages)) for _ in range(slices)]

    def load(
        self,
        lora_index: int,
        module: LoraModule,
        *,
        out_scale: Tensor | None = None,
        out_bias: Tensor | None = None,
    ) -> None:
        """Place one adapter's factors; copies run in order on the current stream.

        What was at `lora_index` is replaced. Afterwards a row's output is
        out_scale * (y + delta) + out_bias in the slices that have factors. A base layer with a
        bias b needs `out_bias` to hold b * (1 - out_scale) as well.
        Args: out_scale, out_bias, float [sum(slice_sizes)] or None for one and zero.
        Raises:
            ShapeError, KernelInputError: factors, or options that this pool was not made for.
            PoolFullError: too few free pages; the place is empty then.
        """
        self._check(lora_index, module)
        _check_row("out_scale", out_scale, self.out_scale)
        _check_row("out_bias", out_bias, self.out_bias)
        self.unload(lora_index)
        parts = [part or _absent() for part in module.slices]
        needed = [-(-part.rank // PAGE_ROWS) for part in parts]
        if any(count > len(free) for count, free in zip(needed, self._free_pages, strict=True)):
            raise PoolFullError(
                f"an adapter needs {needed} pages of {PAGE_ROWS} ranks, "
                f"{[len(free) for free in self._free_pages]} are free; unload another first"
            )
        entries = torch.zeros(self.table.shape[1:], dtype=torch.int32)
        for position, (part, count) in enumerate(zip(parts, needed, strict=True)):
            free = self._free_pages[position]
            pages, free[:] = free[:count], free[count:]
            self._pages[lora_index, position] = pages
            entries[position, 0] = part.rank
            entries[position, 1] = torch.tensor(part.scaling, dtype=torch.float32).view(torch.int32)
            entries[position, TABLE_HEADER : TABLE_HEADER + count] = torch.tensor(pages).int()
            self._copy(position, part, pages)
        self._set_row(self.out_scale, lora_index, out_scale, 1)
        self._set_row(self.out_bias, lora_index, out_bias, 0)
        self.table[lora_index].copy_(entries)
        self.ranks[lora_index] = tuple(part.rank for part in parts)

    def unload(self, lora_index: int) -> None:
        """Free a place: rows that name it are base rows from now on. Idempotent."""
        if not any(self.ranks[lora_index]):
            return
        self.table[lora_index].zero_()
        self.ranks[lora_index] = (0,) * len(self.slice_sizes)
        for position, free in enumerate(self._free_pages):
            free[:] = sorted(free + self._pages.pop((lora_index, position)))

    def _out_tiles(self, block_n: int) -> Tensor:
        rows: list[tuple[int, int, int, int]] = []
        start = 0
        for position, size in enumerate(self.slice_sizes):
            rows += [
                (position, start + column, size - column, self.capacity_ranks * start + column)
                for column in range(0, size, block_n)
            ]
            start += size
        return torch.tensor(rows, device=self.device)

    def _copy(self, position: int, part: LoraSlice, pages: list[int]) -> None:
        """Copy one slice's factors to its pages, neighbouring pages at once."""
        capacity = self.capacity_ranks
        start = capacity * sum(self.slice_sizes[:position])
        lora_a = self.lora_a[position * capacity : (position + 1) * capacity]
        lora_b = self.lora_b[start : start + capacity * self.slice_sizes[position]]
        lora_b = lora_b.view(capacity, self.slice_sizes[position])
        done = 0
        while done < part.rank:
            first = done // PAGE_ROWS
            last = first + 1
            while last < len(pages) and pages[last] == pages[last - 1] + 1:
                last += 1
            count = min(last * PAGE_ROWS, part.rank) - done
            row = pages[first] * PAGE_ROWS
            lora_a[row : row + count].copy_(part.lora_a[done : done + count], non_blocking=True)
            lora_b[row : row + count].copy_(part.lora_b.T[done : done + count], non_blocking=True)
            done += count

    def _set_row(
        self, rows: Tensor | None, lora_index: int, values: Tensor | None, neutral: float
    ) -> None:
        if rows is None:
            return
        if values is None:
            rows[lora_index].fill_(neutral)
        else:
            rows[lora_index].copy_(values, non_blocking=True)

    def _check(self, lora_index: int, module: LoraModule) -> None:
        if not 0 <= lora_index < self.num_adapters:
            raise KernelInputError(
                f"lora_index {lora_index} is not one of 0 to {self.num_adapters - 1}"
            )
        if len(module.slices) != len(self.slice_sizes):
            raise ShapeError(
                f"the adapter has {len(module.slices)} slices, the module {len(self.slice_sizes)}"
            )
        for part, size in zip(module.slices, self.slice_sizes, strict=True):
            if part is None:
                continue
            expected = ((part.rank, self.in_features), (size, part.rank))
            if (part.lora_a.shape, part.lora_b.shape) != expected:
                raise ShapeError(
                    f"lora_a and lora_b are {tuple(part.lora_a.shape)} and "
                    f"{tuple(part.lora_b.shape)}, expected {expected}"
                )
            if part.rank > self.max_rank:
                raise ShapeError(f"rank {part.rank} exceeds the pool's max_rank {self.max_rank}")


def pool_of_stack(stack: LoraStack, device: torch.device | str) -> LoraPool:
    """Return a pool that holds exactly a stack's adapters, each at its active index."""
    ranks = [[part.rank for part in module.slices if part] for module in stack.modules if module]
    pages = sum(-(-max(row, default=0) // PAGE_ROWS) for row in ranks)
    pool = LoraPool(
        stack.slice_sizes,
        stack.in_features,
        max(stack.num_adapters, 1),
        max(pages, 1) * PAGE_ROWS,
        max((rank for row in ranks for rank in row), default=1) or 1,
        stack.dtype,
        device,
    )
    for lora_index, module in enumerate(stack.modules):
        if module is not None:
            pool.load(lora_index, module)
    return pool


def _absent() -> LoraSlice:
    return LoraSlice(torch.empty(0, 0), torch.empty(0, 0), 0.0)


def _check_row(name: str, values: Tensor | None, rows: Tensor | None) -> None:
    if values is None:
        return
    if rows is None:
        raise KernelInputError(f"the pool was made without {name}; make it with one")
    if values.shape != rows.shape[1:]:
        raise ShapeError(f"{name} is {tuple(values.shape)}, not {tuple(rows.shape[1:])}")
