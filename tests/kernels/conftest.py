"""Fixtures of the kernel tests: a fixed generator, the backend and the number of threads."""

from collections.abc import Iterator

import pytest
import torch

from tenora_kernels import dispatch
from tenora_kernels.native import library


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


@pytest.fixture(autouse=True)
def plain_backend() -> Iterator[None]:
    """Ops run torch's products unless a test asks for `backend`; put back after."""
    before = dispatch.active_backend()
    dispatch.use_backend("cpu")
    yield
    dispatch.use_backend(before)


@pytest.fixture(params=["cpu", "native"])
def backend(request: pytest.FixtureRequest, plain_backend: None) -> str:
    """The CPU backends one after the other, bound for the test."""
    name: dispatch.Backend = request.param
    if name == "native":
        library.library()  # a machine without a compiler fails here and says so
    dispatch.use_backend(name)
    return name
