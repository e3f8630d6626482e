"""Which rows of a rope table one step's tokens use."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RopeRows:
    """A base model's tables and the positions of a step's tokens; every layer shares one.

    cos, sin: float32 [max_positions, head_dim], contiguous; positions: [T] int64.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor

    @cached_property
    def gathered(self) -> tuple[Tensor, Tensor]:
        """The rows of the step's tokens, gathered on first use: two [T, head_dim]."""
        return self.cos[self.positions], self.sin[self.positions]
