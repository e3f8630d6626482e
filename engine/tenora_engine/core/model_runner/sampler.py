"""From logits to one token per sequence: greedy or seeded, each row by itself."""

from collections.abc import Sequence as SequenceOf

import torch

from tenora_engine.core.sequence import Sequence
from tenora_kernels.sampling import finite_rows, greedy, sample, uniform


class Sampler:
    """Chooses tokens. `masked_ids` are ids without a token in the tokenizer: never sampled."""

    def __init__(self, masked_ids: SequenceOf[int]) -> None:
        self._masked_ids = torch.tensor(list(masked_ids), dtype=torch.int64)

    def choose(self, logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int | None]:
        """One token id per row of `logits` `[N, V]`; None for a row with non-finite logits.

        A draw depends on the row's own logits, seed and position alone. Mutates `logits`.
        """
        finite: list[bool] = finite_rows(logits).tolist()
        if len(self._masked_ids):
            logits[:, self._masked_ids] = -torch.inf
        chosen: list[int] = greedy(logits).tolist()
        drawn = [
            row
            for row, sequence in enumerate(sequences)
            if sequence.request.temperature > 0.0 and finite[row]
        ]
        if drawn:
            for row, token in zip(drawn, self._draw(logits, sequences, drawn), strict=True):
                chosen[row] = token
        return [token if ok else None for token, ok in zip(chosen, finite, strict=True)]

    def _draw(
        self, logits: torch.Tensor, sequences: SequenceOf[Sequence], rows: list[int]
    ) -> list[int]:
        requests = [sequences[row].request for row in rows]
        uniforms = [
            uniform(sequences[row].request.seed, len(sequences[row].token_ids)) for row in rows
        ]
        tokens: list[int] = sample(
            logits[rows],
            torch.tensor([r.temperature for r in requests], dtype=torch.float32),
            torch.tensor([r.top_p for r in requests], dtype=torch.float32),
            torch.tensor(uniforms, dtype=torch.float64),
        ).tolist()
        return tokens
