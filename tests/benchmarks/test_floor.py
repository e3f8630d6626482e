"""The floor's formula, against numbers worked out by hand."""

import pytest
from peers.floor import Rates, Shape, decode_step_s, floor_of, prefill_s

SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "vocab_size": 49152,
}  # fmt: skip
SHAPE = Shape.of(SMOLLM2)
TINY = Shape(num_layers=1, hidden=2, inner=3, q=2, kv=1, vocab=5)


def test_parameters_of_smollm2() -> None:
    assert SHAPE.layers + SHAPE.head == 134_479_872  # all 134,515,008 but the norms' 61 * 576


def test_parameters_of_a_tiny_shape() -> None:
    # q, k, v: 2 * (2 + 1 + 1); o: 2 * 2; gate, up, down: 3 * 2 * 3
    assert (TINY.layers, TINY.head) == (8 + 4 + 18, 10)


def test_a_lone_decode_step_is_bound_by_reading() -> None:
    rates = Rates(read_bytes_per_s=1e9, flops_per_s=1e15, element_bytes=4)
    # 40 parameters, and keys and values of 7 tokens: 7 * 2 * 1 * 1
    assert decode_step_s(TINY, rates, batch=1, context=7) == pytest.approx(4 * (40 + 14) / 1e9)


def test_a_decode_step_of_many_reads_weights_once_and_every_cache() -> None:
    rates = Rates(read_bytes_per_s=1e9, flops_per_s=1e15, element_bytes=2)
    assert decode_step_s(TINY, rates, batch=3, context=7) == pytest.approx(2 * (40 + 42) / 1e9)


def test_a_decode_step_on_a_slow_processor_is_bound_by_arithmetic() -> None:
    rates = Rates(read_bytes_per_s=1e15, flops_per_s=1e9, element_bytes=4)
    # two operations per parameter; scores and their sum: 4 * q * context
    expected = 3 * (2 * 40 + 4 * 2 * 7) / 1e9
    assert decode_step_s(TINY, rates, batch=3, context=7) == pytest.approx(expected)


def test_prefill_computes_the_head_once_for_each_prompt_and_attention_causally() -> None:
    rates = Rates(read_bytes_per_s=1e15, flops_per_s=1e9, element_bytes=4)
    expected = 2 * (2 * 30 * 4 + 2 * 10 + 4 * 2 * (4 + 3 + 2 + 1)) / 1e9
    assert prefill_s(TINY, rates, prompts=2, prompt_tokens=4) == pytest.approx(expected)


def test_the_first_token_comes_from_prefill() -> None:
    rates = Rates(read_bytes_per_s=1e9, flops_per_s=1e9, element_bytes=4)
    floor = floor_of(TINY, rates, batch=2, prompt_tokens=4, output_tokens=3)
    total = floor.prefill_s + 2 * floor.step_s
    assert floor.output_tokens_per_s == pytest.approx(2 * 3 / total)


def test_sixteen_requests_on_a_machine_with_bfloat16() -> None:
    """430 GFLOP/s and 34 GB/s: a second of prefill, then 63 steps that are bound by arithmetic."""
    rates = Rates(read_bytes_per_s=34e9, flops_per_s=430e9, element_bytes=2)
    floor = floor_of(SHAPE, rates, batch=16, prompt_tokens=128, output_tokens=64)
    assert floor.prefill_s == pytest.approx(1.03, rel=0.02)
    assert floor.step_s == pytest.approx(0.0104, rel=0.02)
    assert floor.output_tokens_per_s == pytest.approx(600, rel=0.05)
