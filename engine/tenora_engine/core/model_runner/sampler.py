"""From hidden states to one token per sequence: greedy or seeded, each row by itself."""

from collections.abc import Sequence as SequenceOf

import torch

from tenora_engine.core.models.output_head import OutputHead
from tenora_engine.core.sequence import Sequence
from tenora_kernels.sampling import finite_rows, sample, uniform


class Sampler:
    """Chooses tokens. `masked_ids` are ids without a token in the tokenizer: never sampled."""

    def __init__(self, head: OutputHead, masked_ids: SequenceOf[int]) -> None:
        self._head = head
        self._left_out = torch.zeros(head.vocab_size, dtype=torch.bool)
        self._left_out[list(masked_ids)] = True
        self._has_masked = bool(masked_ids)

    def choose(self, hidden: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int | None]:
        """One token id per row of `hidden` `[N, H]`; None for a row with non-finite logits.

        A choice depends on the row's own hidden state, seed and position alone.
        """
        drawn = [row for row, s in enumerate(sequences) if s.request.temperature > 0.0]
        if not drawn:
            return self._likeliest(hidden)
        if len(drawn) == len(sequences):
            return self._draw(hidden, sequences)
        others = [row for row, s in enumerate(sequences) if s.request.temperature <= 0.0]
        tokens = {
            **dict(zip(others, self._likeliest(hidden[others]), strict=True)),
            **dict(
                zip(drawn, self._draw(hidden[drawn], [sequences[r] for r in drawn]), strict=True)
            ),
        }
        return [tokens[row] for row in range(len(sequences))]

    def _likeliest(self, hidden: torch.Tensor) -> list[int | None]:
        tokens, is_finite = self._head.likeliest(hidden, self._left_out)
        return [
            token if ok else None
            for token, ok in zip(tokens.tolist(), is_finite.tolist(), strict=True)
        ]

    def _draw(self, hidden: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int | None]:
        logits = self._head.logits(hidden)
        chosen: list[int | None] = [None] * len(sequences)
        rows = [row for row, ok in enumerate(finite_rows(logits).tolist()) if ok]
        if not rows:
            return chosen
        if len(rows) < len(sequences):
            logits = logits[rows]
        if self._has_masked:
            logits.masked_fill_(self._left_out, -torch.inf)
        requests = [sequences[row].request for row in rows]
        uniforms = [
            uniform(sequences[row].request.seed, len(sequences[row].token_ids)) for row in rows
        ]
        tokens: list[int] = sample(
            logits,
            torch.tensor([r.temperature for r in requests], dtype=torch.float32),
            torch.tensor([r.top_p for r in requests], dtype=torch.float32),
            torch.tensor(uniforms, dtype=torch.float64),
        ).tolist()
        for row, token in zip(rows, tokens, strict=True):
            chosen[row] = token
        return chosen
