"""Choosing tokens without sorting the vocabulary.

Nearly every row is settled by its largest few probabilities, found for all rows together through
the maxima of chunks: the k largest elements lie in the k chunks of the largest maxima. Another
row (a flat distribution) is searched alone, see `search.py`.
"""

import torch
from torch import Tensor

from tenora_kernels.sampling import reference
from tenora_kernels.sampling.search import search_row

CHUNK = 64
# how many of a row's largest probabilities are tried before it is searched alone
NUM_LARGEST = 64


def greedy(logits: Tensor) -> Tensor:
    """Return the index of each row's largest logit, the lowest among equals: int64 [N]."""
    rows, vocabulary = logits.shape
    if vocabulary % CHUNK or rows == 0:
        return logits.argmax(dim=-1)
    chunks = logits.reshape(rows, -1, CHUNK)
    best_chunk = chunks.amax(dim=-1).argmax(dim=-1)
    inside = chunks[torch.arange(rows), best_chunk].argmax(dim=-1)
    return best_chunk * CHUNK + inside


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """Return one token per row from the top-p cut distribution; see `reference.sample`.

    A row's choice does not depend on the other rows.
    """
    wide = logits.float()
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    shifted.div_(reference.usable_temperature(temperature).unsqueeze(1))
    probabilities = torch.softmax(shifted, dim=-1)
    mass = probabilities.sum(dim=-1, dtype=torch.float64)
    choices = _choose_among_largest(probabilities, mass, top_p, uniform)
    for row in (choices < 0).nonzero().flatten().tolist():
        choices[row] = search_row(
            probabilities[row], float(mass[row]), float(top_p[row]), float(uniform[row])
        )
    return choices


def _choose_among_largest(p: Tensor, mass: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """The choice of each row that its largest probabilities settle, -1 for the others."""
    width = min(NUM_LARGEST, p.shape[1])
    values, tokens = _largest(p, width)
    cumulative = values.double().cumsum(dim=-1)
    is_whole = top_p >= 1
    last_kept = (cumulative < top_p.double().unsqueeze(1)).sum(dim=-1)
    last_inside = last_kept.clamp(max=width - 1).unsqueeze(1)
    kept_mass = torch.where(is_whole, mass, cumulative.gather(1, last_inside)[:, 0])
    rank = (cumulative <= (uniform * kept_mass).unsqueeze(1)).sum(dim=-1)
    chosen = tokens.gather(1, rank.clamp(max=width - 1).unsqueeze(1))[:, 0]
    needed = torch.where(is_whole, rank, torch.maximum(rank, last_kept))
    # an element equal to the smallest found may have equals of lower index that were not found
    num_certain = (values > values[:, -1:]).sum(dim=-1)
    return torch.where(needed < num_certain, chosen, -1)


def _largest(p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest of each row, descending, equal ones by index: values and indices."""
    vocabulary = p.shape[1]
    if vocabulary % CHUNK == 0 and vocabulary // CHUNK >= 4 * width:
        chunks = p.view(p.shape[0], -1, CHUNK)
        best = chunks.amax(dim=-1).topk(width, dim=-1, sorted=False).indices  # [N, width]
        found = chunks.gather(1, best.unsqueeze(2).expand(-1, -1, CHUNK)).flatten(1)
        inside = found.topk(width, dim=-1, sorted=False).indices
        tokens = best.gather(1, inside // CHUNK) * CHUNK + inside % CHUNK
    else:
        tokens = p.topk(width, dim=-1, sorted=False).indices
    tokens = tokens.sort(dim=-1).values
    values, order = p.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(1, order)


def finite_rows(logits: Tensor) -> Tensor:
    """Return which rows hold neither NaN nor infinity of either sign: bool [N]."""
    finite = torch.isfinite(logits.sum(dim=-1))
    if bool(finite.all()):
        return finite
    # a sum may overflow where no element does
    return reference.finite_rows(logits)
