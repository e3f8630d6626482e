"""The threads of the C++ library: every chunk once, whoever calls and however often."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tenora_kernels.linear.native import NativeProduct
from tenora_kernels.native import library


@pytest.fixture(autouse=True)
def more_threads_than_cores() -> Iterator[None]:
    """Workers are taken from their core in the middle of jobs."""
    library.set_threads(5)
    yield
    library.set_threads(torch.get_num_threads())


def test_jobs_in_quick_succession_do_every_chunk_once(generator: torch.Generator) -> None:
    products = [
        NativeProduct(torch.randn(n, 24, generator=generator), None) for n in (16, 96, 515, 2049)
    ]
    x = torch.randn(3, 24, generator=generator)
    expected = [product(x) for product in products]
    totals = [torch.zeros_like(y) for y in expected]
    for _ in range(400):
        for product, total in zip(products, totals, strict=True):
            product.add_(total, x)  # a chunk that is done twice or not at all shows in the sum
    for y, total in zip(expected, totals, strict=True):
        assert torch.allclose(total, 400 * y, rtol=1e-3, atol=1e-3)


def test_two_callers_at_once_get_their_own_results(generator: torch.Generator) -> None:
    product = NativeProduct(torch.randn(2049, 64, generator=generator), None)
    inputs = [torch.randn(7, 64, generator=generator) for _ in range(2)]
    expected = [product(x) for x in inputs]

    def call_often(index: int) -> bool:
        return all(torch.equal(product(inputs[index]), expected[index]) for _ in range(150))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(call_often, range(2)))
