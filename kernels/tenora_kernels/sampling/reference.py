"""The specification of choosing tokens: one row at a time."""

import torch
from torch import Tensor

MIN_TEMPERATURE = 1e-12


def greedy(logits: Tensor) -> Tensor:
    """Return the index of each row's largest logit, the lowest among equals.

    Args: logits [N, V]. Returns: int64 [N].
    """
    choices = [int((row == row.max()).nonzero()[0]) for row in logits]
    return torch.tensor(choices, dtype=torch.int64, device=logits.device)


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Return one token per row by inverse transform on the top-p cut distribution.

    Semantics: p = softmax(logits / temperature) in float32, sorted descending (equal ones by
    index); the cut keeps the smallest prefix whose mass reaches top_p, at least one token; the
    choice is the first whose cumulative mass exceeds uniform * mass of the prefix (float64).
    A top_p of 1 or more keeps everything, and the mass is then summed in order of index.
    Args: logits [N, V]; temperature, top_p [N] > 0; uniform float64 [N] in [0, 1).
    Returns: int64 [N]. A row does not depend on the others.
    """
    choices = []
    rows = zip(
        logits.float(),
        usable_temperature(temperature),
        top_p.tolist(),
        uniform.tolist(),
        strict=True,
    )
    for row, row_temperature, row_top_p, row_uniform in rows:
        probabilities = torch.softmax((row - row.max()) / row_temperature, dim=-1)
        sorted_mass, order = torch.sort(probabilities, descending=True, stable=True)
        cumulative = sorted_mass.double().cumsum(0)
        if row_top_p >= 1:
            last, mass = len(order) - 1, probabilities.sum(dtype=torch.float64)
        else:
            last = min(int((cumulative < row_top_p).sum()), len(order) - 1)
            mass = cumulative[last]
        rank = int((cumulative <= row_uniform * mass).sum())
        choices.append(int(order[min(rank, last)]))
    return torch.tensor(choices, dtype=torch.int64, device=logits.device)


def usable_temperature(temperature: Tensor) -> Tensor:
    """Temperatures as float32, none so small that 0 / temperature could be NaN."""
    return temperature.float().clamp(min=MIN_TEMPERATURE)


def finite_rows(logits: Tensor) -> Tensor:
    """Return which rows hold neither NaN nor infinity of either sign: bool [N]."""
    return torch.isfinite(logits).all(dim=-1)
