"""Fixtures of the kernel tests: a fixed generator, and the number of threads as a fact."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240607)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread: products this small are slower on two, far slower on a busy machine.

    A test of what must hold on more threads sets their number itself; it is put back after.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
