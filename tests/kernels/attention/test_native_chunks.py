"""The C++ attention: a row's bits do not depend on how its prompt is cut, nor on its neighbours."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from tenora_kernels.attention import AttentionBatch
from tenora_kernels.attention.native import paged_attention
from tenora_kernels.testing import RaggedKv, ragged_kv

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 40, 16
LENGTH = 203


def _attend(
    q: torch.Tensor, kv: RaggedKv, spans: list[tuple[int, int, int]], rule: dict[str, Any]
) -> torch.Tensor:
    """Queries of (sequence, first, end) spans in one step."""
    batch = AttentionBatch.build(
        [end - first for _, first, end in spans],
        [end for _, _, end in spans],
        [kv.block_tables[sequence] for sequence, _, _ in spans],
        BLOCK_SIZE,
    )
    rows = torch.cat([q[sequence, first:end] for sequence, first, end in spans])
    return paged_attention(rows, kv.k_cache, kv.v_cache, batch, scale=0.2, **rule)


@pytest.mark.parametrize("rule", [{}, {"sliding_window": 70}, {"soft_cap": 5.0}])
def test_chunks_decodes_and_whole_prompts_agree_bit_for_bit(
    rule: dict[str, Any], generator: torch.Generator
) -> None:
    kv = ragged_kv([LENGTH, 90], KV_HEADS, HEAD_DIM, BLOCK_SIZE, generator=generator)
    q = torch.randn(2, LENGTH, HEADS, HEAD_DIM, generator=generator)
    whole = _attend(q, kv, [(0, 0, LENGTH)], rule)
    for cuts in ([1], [64, 65], [100], list(range(1, LENGTH))):
        edges = [0, *cuts, LENGTH]
        parts = []
        for first, end in pairwise(edges):
            step = _attend(q, kv, [(1, 80, 90), (0, first, end), (1, 3, 4)], rule)
            parts.append(step[10 : 10 + end - first])
        assert torch.equal(torch.cat(parts), whole), cuts
