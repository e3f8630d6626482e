"""The specification of token penalties, and of the counts that they read."""

import torch
from torch import Tensor


def penalise_(
    logits: Tensor,
    counts: Tensor,
    in_prompt: Tensor,
    state_rows: Tensor,
    *,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Lower the logits of tokens that a sequence already has.

    Semantics, with s = state_rows[n] >= 0 and c = counts[s, v]:
    x = logits[n, v]; where c > 0 or in_prompt[s, v]: x = x / repetition[n] if x > 0, else
    x * repetition[n]; then x = x - frequency[n] * c - presence[n] * (c > 0), in float32.
    Args: logits [N, V]; counts int32 [R, V], how often an output has a token; in_prompt bool
        [R, V]; state_rows int64 [N], negative for a row without penalties; the others float32 [N].
    Mutates: logits.
    """
    for row, state in enumerate(state_rows.tolist()):
        if state < 0:
            continue
        x, count = logits[row].float(), counts[state]
        repeated = torch.where(x > 0, x / repetition[row], x * repetition[row])
        x = torch.where((count > 0) | in_prompt[state], repeated, x)
        x = x - frequency[row] * count - presence[row] * (count > 0)
        logits[row] = x.to(logits.dtype)


def count_tokens_(counts: Tensor, state_rows: Tensor, tokens: Tensor) -> None:
    """Add one to counts[state_rows[n], tokens[n]] of every row with a state.

    Args: counts int32 [R, V]; state_rows, tokens int64 [N].
    Mutates: counts.
    """
    for state, token in zip(state_rows.tolist(), tokens.tolist(), strict=True):
        if state >= 0:
            counts[state, token] += 1
