"""Which dtypes a replica computes in, and how strictly."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtype of activations, and the one that weights are held in.

    `weights` None keeps each matrix, and each adapter's factors, as its file has them: the native
    CPU products read narrow weights exactly, so nothing is gained by widening them.
    """

    activations: torch.dtype
    weights: torch.dtype | None
    rounds_inputs: bool = False
    """Whether a product with bfloat16 weights may round its input to bfloat16, for speed."""
    rounds_to_int8: bool = False
    """Whether the base model's products hold their weights in 8 bits, one step per output."""
    is_batch_invariant: bool = False
    """Whether a GPU's products give a row the same bits at every number of rows, at some cost."""

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision":
        """Everything in one dtype."""
        return cls(activations=dtype, weights=dtype)
