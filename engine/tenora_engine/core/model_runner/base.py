"""What the core asks of a model runner; one file per kind of device implements it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

import torch

from tenora_engine.core.scheduler.scheduler import ScheduledSequence


class ModelRunner(ABC):
    """The forward pass of a step, and the KV memory that it reads and writes."""

    @abstractmethod
    def run(self, scheduled: SequenceOf[ScheduledSequence]) -> list[int | None]:
        """Compute the step; one sampled token per sequence that samples, in order.

        None stands for a sequence whose logits are not finite. Mutates the KV memory.
        """

    @abstractmethod
    def all_logits(
        self, token_ids: SequenceOf[int], block_table: list[int], digest: str | None
    ) -> torch.Tensor:
        """Logits `[len(token_ids), vocab_size]` of one prompt, computed in the given blocks."""

    @abstractmethod
    def zero_blocks(self, blocks: SequenceOf[int]) -> None:
        """Overwrite the keys and values of `blocks` with zeros."""
