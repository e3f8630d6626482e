"""From logits to one token per row on the device, without the host looking at any number."""

import torch
from torch import Tensor

from tenora_kernels.sampling import finite_rows, greedy, sample

NOT_FINITE = -1


def choose_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
    *,
    masked_ids: Tensor | None,
    has_draws: bool,
) -> Tensor:
    """Return one id per row, `NOT_FINITE` for a row with NaN or infinity: int64 [N].

    Args: logits [N, V]; temperature, top_p [N] float32, temperature 0 for greedy; uniform
    [N] float64; masked_ids, columns that are never chosen; has_draws, whether any temperature
    is not 0.
    Mutates: logits, in the masked columns.
    """
    finite = finite_rows(logits)
    if masked_ids is not None:
        logits.index_fill_(1, masked_ids, -torch.inf)
    chosen = greedy(logits)
    if has_draws:
        drawn = sample(logits, temperature, top_p, uniform)
        chosen = torch.where(temperature > 0.0, drawn, chosen)
    return torch.where(finite, chosen, NOT_FINITE)
