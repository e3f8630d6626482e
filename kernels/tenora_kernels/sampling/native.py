"""Greedy choice and the check of logits in C++; other dtypes than float32 run the torch twin."""

import torch
from torch import Tensor

from tenora_kernels.native import library
from tenora_kernels.sampling import cpu


def greedy(logits: Tensor) -> Tensor:
    """Return the index of each row's largest logit, the lowest among equals: int64 [N]."""
    if not _is_plain(logits):
        return cpu.greedy(logits)
    return _choose(logits)[0]


def finite_rows(logits: Tensor) -> Tensor:
    """Return which rows hold neither NaN nor infinity of either sign: bool [N]."""
    if not _is_plain(logits):
        return cpu.finite_rows(logits)
    return _choose(logits)[1]


def _is_plain(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.stride(1) == 1 and logits.numel() > 0


def _choose(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows, vocabulary = logits.shape
    index = torch.empty(rows, dtype=torch.int64)
    is_finite = torch.empty(rows, dtype=torch.bool)
    library.library().tn_greedy(
        logits.data_ptr(),
        logits.stride(0),
        rows,
        vocabulary,
        index.data_ptr(),
        is_finite.data_ptr(),
    )
    return index, is_finite
