"""From the last hidden states to logits, or straight to the most likely token."""

import torch

from tenora_kernels.linear import PackedLinear
from tenora_kernels.sampling import finite_rows, greedy


class OutputHead:
    """The product of the vocabulary: logits are its outputs, divided by `divisor`."""

    def __init__(self, product: PackedLinear, divisor: float) -> None:
        self._product = product
        self._divisor = divisor

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self._product.out_features

    @property
    def dtype(self) -> torch.dtype:
        """What the weight is held in."""
        return self._product.dtype

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[N, vocab_size]` in float32 of normed hidden states `[N, H]`."""
        logits = self._product(hidden).float()
        return logits / self._divisor if self._divisor != 1.0 else logits

    def likeliest(
        self, hidden: torch.Tensor, left_out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 `[N]` of the largest logits, and whether all logits of a row are finite.

        The lowest id among equals, of those that `left_out` bool `[vocab_size]` does not name. Most
        logits are not computed where the product has a screen; the choice is the same.
        """
        native = self._product.native
        # a division may round two outputs to one logit, of which the lower id would count
        if native is not None and native.finds_largest and self._divisor == 1.0:
            found = native.largest(hidden, left_out)
            return found.index, found.is_finite
        logits = self.logits(hidden)
        is_finite = finite_rows(logits)
        return greedy(logits.masked_fill_(left_out, -torch.inf)), is_finite
