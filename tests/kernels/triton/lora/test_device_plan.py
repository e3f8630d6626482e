"""The plan of a step: rows grouped by adapter, in memory that never moves."""

import pytest
import torch
from torch import Tensor

from tenora_kernels.lora.device_plan import DeviceLoraPlan
from tenora_kernels.lora.device_pool import LoraPool
from tenora_kernels.lora.tiling import max_tiles


def _plan(num_adapters: int, max_tokens: int) -> DeviceLoraPlan:
    pool = LoraPool((8,), 8, num_adapters, 8, 8, torch.float32, "cpu")
    plan = DeviceLoraPlan([pool], max_tokens)
    plan.tiles.fill_(-7)
    return plan


def _groups(plan: DeviceLoraPlan) -> dict[int, list[int]]:
    """Rows by adapter as the tiles in use give them."""
    groups: dict[int, list[int]] = {}
    for adapter, first, count in plan.tiles[: plan.num_tiles].tolist():
        if count:
            assert count <= plan.tiling.tile_rows
            groups.setdefault(adapter, []).extend(plan.rows[first : first + count].tolist())
    return groups


def _expected(token_adapter: Tensor, num_adapters: int) -> dict[int, list[int]]:
    found = {j: (token_adapter == j).nonzero().flatten().tolist() for j in range(num_adapters)}
    return {j: rows for j, rows in found.items() if rows}


@pytest.mark.parametrize(("count", "num_adapters"), [(1, 1), (16, 3), (65, 8), (2049, 31)])
def test_every_row_is_in_one_tile_of_its_adapter(
    count: int, num_adapters: int, generator: torch.Generator
) -> None:
    plan = _plan(num_adapters, count)
    token_adapter = torch.randint(-1, num_adapters, (count,), generator=generator)
    token_adapter[0] = num_adapters - 1
    plan.assign(token_adapter)
    assert _groups(plan) == _expected(token_adapter, num_adapters)


def test_worst_case_fits_and_unknown_adapters_are_none() -> None:
    plan = _plan(4, 52)
    token_adapter = torch.tensor([0] * 17 + [1] * 17 + [2] * 1 + [3] * 17)
    plan.assign(token_adapter)
    assert _groups(plan) == _expected(token_adapter, 4)
    assert max_tiles(52, 4, 16) == 7
    plan.assign(torch.tensor([5, 4, -9, 1]))
    assert _groups(plan) == {1: [3]}


def test_memory_stays_where_a_graph_found_it() -> None:
    plan = _plan(4, 40)
    plan.assign(torch.tensor([3] * 40))
    places = (plan.rows.data_ptr(), plan.tiles.data_ptr(), plan.workspace.data_ptr())
    plan.assign(torch.tensor([0, -1, 2]))
    assert places == (plan.rows.data_ptr(), plan.tiles.data_ptr(), plan.workspace.data_ptr())
    assert _groups(plan) == {0: [0], 2: [2]}
    plan.assign(torch.tensor([1]), is_base_only=True)
    assert (plan.num_tiles, plan.is_base_only) == (0, True)
