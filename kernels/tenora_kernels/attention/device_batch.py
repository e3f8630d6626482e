"""The shape of one step's attention as the device reads it: lengths and tables in device memory.

The host knows capacities only, so one captured graph serves every batch that fits them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.errors import KernelInputError


@dataclass(frozen=True, eq=False, slots=True)
class DeviceAttentionBatch:
    """Device tensors of S sequences, and the capacities that fix the grids.

    Tokens are laid out sequence after sequence; a sequence's queries are its last positions.
    Sequences with one query and with more may stand in any order. A padded sequence has no query:
    its two entries of `cu_query_lens` are equal, and its other entries are not read.
    """

    block_tables: Tensor  # int32 [S, max_blocks]
    seq_lens: Tensor  # int32 [S], tokens including the step's own
    cu_query_lens: Tensor  # int32 [S + 1], starts at 0
    max_seq_len: int  # no sequence is longer
    max_query_len: int  # no sequence has more queries; 1 leaves the prefill kernel out
    has_decodes: bool = True  # whether some sequence may have exactly one query

    @classmethod
    def allocate(
        cls,
        max_sequences: int,
        max_seq_len: int,
        max_query_len: int,
        block_size: int,
        device: torch.device | str,
    ) -> "DeviceAttentionBatch":
        """Return static buffers for a captured graph: every sequence padded until `fill_`."""
        max_blocks = -(-max_seq_len // block_size)
        return cls(
            torch.zeros(max_sequences, max_blocks, dtype=torch.int32, device=device),
            torch.zeros(max_sequences, dtype=torch.int32, device=device),
            torch.zeros(max_sequences + 1, dtype=torch.int32, device=device),
            max_seq_len,
            max_query_len,
        )

    @classmethod
    def from_host(cls, batch: AttentionBatch, device: torch.device | str) -> "DeviceAttentionBatch":
        """Return `batch` in memory of its own, with its own lengths as capacities."""
        device_batch = cls(
            torch.empty(
                len(batch.seq_lens),
                max(map(len, batch.block_tables), default=0),
                dtype=torch.int32,
                device=device,
            ),
            torch.empty(len(batch.seq_lens), dtype=torch.int32, device=device),
            torch.empty(len(batch.seq_lens) + 1, dtype=torch.int32, device=device),
            max(batch.seq_lens, default=0),
            max(batch.query_lens, default=0),
            1 in batch.query_lens,
        )
        device_batch.fill_(batch)
        return device_batch

    @property
    def num_sequences(self) -> int:
        """How many sequences fit, padded ones included."""
        return self.seq_lens.shape[0]

    def fill_(self, batch: AttentionBatch) -> None:
        """Overwrite the buffers with `batch` and pad what is left; three copies, no host sync.

        Mutates: block_tables, seq_lens and cu_query_lens, in place.
        Raises:
            KernelInputError: the batch exceeds a capacity.
        """
        self._check_fits(batch)
        tables = torch.zeros(self.block_tables.shape, dtype=torch.int32)
        for row, table in enumerate(batch.block_tables):
            tables[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
        seq_lens = torch.zeros(self.num_sequences, dtype=torch.int32)
        seq_lens[: len(batch.seq_lens)] = torch.tensor(batch.seq_lens, dtype=torch.int32)
        query_lens = torch.zeros(self.num_sequences + 1, dtype=torch.int32)
        query_lens[1 : len(batch.query_lens) + 1] = torch.tensor(
            batch.query_lens, dtype=torch.int32
        )
        self.block_tables.copy_(tables)
        self.seq_lens.copy_(seq_lens)
        self.cu_query_lens.copy_(query_lens.cumsum(0, dtype=torch.int32))

    def _check_fits(self, batch: AttentionBatch) -> None:
        most_blocks = max(map(len, batch.block_tables), default=0)
        for name, found, capacity in (
            ("sequences", len(batch.seq_lens), self.num_sequences),
            ("tokens in a sequence", max(batch.seq_lens, default=0), self.max_seq_len),
            ("queries in a sequence", max(batch.query_lens, default=0), self.max_query_len),
            ("blocks in a table", most_blocks, self.block_tables.shape[1]),
        ):
            if found > capacity:
                raise KernelInputError(
                    f"the batch has {found} {name}, the buffers hold {capacity}; "
                    "use buffers of a larger capacity"
                )
