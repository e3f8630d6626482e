"""The measuring stick itself: differences, NaN and poison are seen."""

import pytest
import torch

from tenora_kernels.errors import KernelInputError
from tenora_kernels.testing import error_of, is_close, is_far, poisoned, ragged_kv


def test_error_is_relative_to_large_values_and_absolute_to_small_ones() -> None:
    assert error_of(torch.tensor([101.0]), torch.tensor([99.0])) == pytest.approx(0.02)
    assert error_of(torch.tensor([0.02]), torch.tensor([0.0])) == pytest.approx(0.02)
    assert error_of(torch.empty(0), torch.empty(0)) == 0


def test_nan_equals_nan_only() -> None:
    nan = poisoned(2)
    assert is_close(nan, nan, torch.float32)
    assert is_far(nan, torch.zeros(2), torch.float32)


def test_shapes_must_agree() -> None:
    with pytest.raises(KernelInputError):
        error_of(torch.ones(2), torch.ones(1))


def test_ragged_pool_is_poison_outside_its_sequences(generator: torch.Generator) -> None:
    kv = ragged_kv([1, 17, 33], 2, 4, 16, generator=generator)
    assert int(kv.k_cache.isfinite().sum()) == (1 + 17 + 33) * 2 * 4
    blocks = [block for table in kv.block_tables for block in table]
    assert len(blocks) == len(set(blocks)) == 1 + 2 + 3
