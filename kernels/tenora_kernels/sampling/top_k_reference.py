"""The specification of choosing with top-k: `reference.sample` among the k largest."""

import torch
from torch import Tensor

from tenora_kernels.sampling.reference import usable_temperature


def sample_top_k(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
) -> Tensor:
    """Return one token per row from the distribution cut by top-k, then by top-p.

    Semantics: p = softmax(logits / temperature) in float32, sorted descending (equal ones by
    index); the first top_k remain, m being their mass; the cut keeps the smallest prefix of them
    whose mass reaches top_p * m, at least one token; the choice is the first whose cumulative
    mass exceeds uniform * mass of the prefix (float64).
    Args: logits [N, V]; temperature, top_p [N] > 0; top_k int64 [N], all where it is not
        positive; uniform float64 [N] in [0, 1).
    Returns: int64 [N]. A row does not depend on the others.
    """
    choices = []
    rows = zip(
        logits.float(),
        usable_temperature(temperature),
        top_k.tolist(),
        top_p.double().tolist(),
        uniform.tolist(),
        strict=True,
    )
    for row, row_temperature, row_top_k, row_top_p, row_uniform in rows:
        probabilities = torch.softmax((row - row.max()) / row_temperature, dim=-1)
        sorted_mass, order = torch.sort(probabilities, descending=True, stable=True)
        if row_top_k > 0:
            sorted_mass = sorted_mass[:row_top_k]
        cumulative = sorted_mass.double().cumsum(0)
        last = len(cumulative) - 1
        if row_top_p < 1:
            last = min(int((cumulative < row_top_p * cumulative[-1]).sum()), last)
        rank = int((cumulative <= row_uniform * cumulative[last]).sum())
        choices.append(int(order[min(rank, last)]))
    return torch.tensor(choices, dtype=torch.int64, device=logits.device)
