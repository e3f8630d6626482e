"""Several queries of one sequence: the tail of a prompt, or the whole of it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False, slots=True)
class PrefillChunk:
    """Where one chunk's queries read."""

    rows: slice  # its tokens in the step
    blocks: tuple[int, ...]
    kv_len: int  # positions gathered from `blocks`, the last of them the last query's own
    sliding_window: int | None
    _index: Tensor | None = field(default=None)
    _visible: Tensor | None = field(default=None)

    @property
    def num_queries(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def is_plain_causal(self) -> bool:
        """Whether query i sees exactly keys 0 to i, so that no mask is needed."""
        return self.num_queries == self.kv_len and (
            self.sliding_window is None or self.sliding_window >= self.kv_len
        )

    def gather(self, cache: Tensor) -> Tensor:
        """Return the chunk's keys or values in order of position: [Hkv, kv_len, D]."""
        if self._index is None:
            self._index = torch.tensor(self.blocks)
        gathered = cache.index_select(1, self._index)
        return gathered.flatten(1, 2)[:, : self.kv_len]

    def visible(self) -> Tensor:
        """Return which keys each query sees: bool [num_queries, kv_len]."""
        if self._visible is None:
            query = torch.arange(self.kv_len - self.num_queries, self.kv_len).unsqueeze(1)
            key = torch.arange(self.kv_len).unsqueeze(0)
            self._visible = key <= query
            if self.sliding_window is not None:
                self._visible &= key > query - self.sliding_window
        return self._visible
