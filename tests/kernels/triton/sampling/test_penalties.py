"""Token penalties on the device: right, only where a row has a state, and rows are alone."""

import pytest
import torch

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.sampling import penalty_reference
from tenora_kernels.sampling.triton_ops import count_tokens_, penalise_
from tenora_kernels.testing import is_close, is_far, poisoned


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 65, 2049])
def test_equals_float64(vocabulary: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    logits = poisoned(4, vocabulary + 3, dtype=dtype)[:, 1 : vocabulary + 1]
    logits.copy_(torch.randn(4, vocabulary, generator=generator))
    counts = torch.randint(0, 3, (5, vocabulary), generator=generator).to(torch.int32)
    counts[3, 0], counts[1] = 2, 7  # no row has state 1
    in_prompt = torch.randint(0, 2, (5, vocabulary), generator=generator).bool()
    state = (counts, in_prompt, torch.tensor([3, -1, 0, 4]))
    repetition = torch.tensor([1.3, 2.0, 1.0, 0.8])
    presence = torch.tensor([0.5, 9.0, 0.0, -0.5])
    frequency = torch.tensor([0.2, 9.0, 0.0, 0.1])
    before = logits.double()
    expected, without = before.clone(), before.clone()
    wide = [values.double() for values in (repetition, presence, frequency)]
    for wanted, used in ((expected, wide[2]), (without, 0 * wide[2])):
        penalty_reference.penalise_(
            wanted, *state, repetition=wide[0], presence=wide[1], frequency=used
        )
    assert is_far(without, expected, dtype)
    penalise_(logits, *state, repetition=repetition, presence=presence, frequency=frequency)
    assert is_close(logits, expected, dtype)
    assert torch.equal(logits[1].double(), before[1])


def test_counts_follow_their_specification() -> None:
    state_rows, tokens = torch.tensor([2, -1, 0, 2]), torch.tensor([5, 1, 0, 5])
    expected, got = torch.zeros(2, 3, 7, dtype=torch.int32)
    penalty_reference.count_tokens_(expected, state_rows, tokens)
    count_tokens_(got, state_rows, tokens)
    assert torch.equal(got, expected)
    assert int(got[2, 5]) == 2


def test_refuses_a_state_that_does_not_fit() -> None:
    logits, rows, row = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64), torch.ones(1)
    counts, in_prompt = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 4, dtype=torch.bool)
    penalties = {"repetition": row, "presence": row, "frequency": row}
    with pytest.raises(ShapeError):
        penalise_(logits, counts[:, :3], in_prompt, rows, **penalties)
    with pytest.raises(ShapeError, match="in_prompt"):
        penalise_(logits, counts, in_prompt[:, :3], rows, **penalties)
    with pytest.raises(ShapeError, match="contiguous"):
        penalise_(torch.zeros(1, 8)[:, ::2], counts, in_prompt, rows, **penalties)
    with pytest.raises(DtypeError):
        count_tokens_(counts.long(), rows, rows)
