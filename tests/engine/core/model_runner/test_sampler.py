"""The sampler: each row its own token, whoever shares the step."""

from collections.abc import Iterator

import pytest
import torch

from tenora_engine.core.messages import AddSequence
from tenora_engine.core.model_runner.sampler import Sampler
from tenora_engine.core.models.output_head import OutputHead
from tenora_engine.core.sequence import Clockings, Sequence
from tenora_kernels import dispatch
from tenora_kernels.linear import PackedLinear

VOCAB, HIDDEN = 300, 64
MASKED = (7, 299)


@pytest.fixture(params=["cpu", "native"], autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """The CPU's kernel backends one after the other; `native` alone has a screen."""
    before = dispatch.active_backend()
    dispatch.use_backend(dispatch.choose_backend("cpu", request.param))
    yield
    dispatch.use_backend(before)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _head(generator: torch.Generator, divisor: float = 1.0) -> OutputHead:
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    weight[list(MASKED)] *= 50.0  # likeliest of all, were they not masked
    return OutputHead(PackedLinear(weight, finds_largest=True), divisor)


def _sequence(row: int, temperature: float) -> Sequence:
    request = AddSequence(
        request_id=str(row), token_ids=(1,), max_tokens=5, temperature=temperature, top_p=0.9,
        seed=row, stop_token_ids=(), adapter_digest=None, cache_root=b"", fairness_key="",
        weight=1.0, priority=0,
    )  # fmt: skip
    return Sequence(request, Clockings(0.0), row, token_ids=[1] * (row + 1))


@pytest.mark.parametrize("divisor", [1.0, 8.0])
@pytest.mark.parametrize("temperatures", [[0.0] * 6, [0.8] * 6, [0.0, 0.8, 0.8, 0.0, 0.8, 0.0]])
def test_a_row_is_alone(
    temperatures: list[float], divisor: float, generator: torch.Generator
) -> None:
    sampler = Sampler(_head(generator, divisor), MASKED)
    hidden = torch.randn(6, HIDDEN, generator=generator)
    sequences = [_sequence(row, t) for row, t in enumerate(temperatures)]
    together = sampler.choose(hidden, sequences)
    alone = [sampler.choose(hidden[i : i + 1], [s])[0] for i, s in enumerate(sequences)]
    assert together == alone
    assert not {*MASKED, None} & set(together)


def test_a_greedy_row_takes_its_largest_logit(generator: torch.Generator) -> None:
    head = _head(generator)
    hidden = torch.randn(6, HIDDEN, generator=generator)
    logits = head.logits(hidden)
    logits[:, list(MASKED)] = -torch.inf
    chosen = Sampler(head, MASKED).choose(hidden, [_sequence(row, 0.0) for row in range(6)])
    assert chosen == logits.argmax(dim=1).tolist()


def test_damage_stays_in_its_row(generator: torch.Generator) -> None:
    sampler = Sampler(_head(generator), MASKED)
    hidden = torch.randn(6, HIDDEN, generator=generator)
    sequences = [_sequence(row, 0.8 * (row % 2)) for row in range(6)]
    whole = sampler.choose(hidden, sequences)
    hidden[0, 3], hidden[3, 5] = torch.nan, torch.inf
    damaged = sampler.choose(hidden, sequences)
    assert [damaged[0], damaged[3]] == [None, None]
    assert [damaged[i] for i in (1, 2, 4, 5)] == [whole[i] for i in (1, 2, 4, 5)]
    hidden[:] = torch.nan
    assert sampler.choose(hidden, sequences) == [None] * 6
