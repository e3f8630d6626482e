"""Which settings a peer is given."""

from peers.trials import fastest, untried

FLOAT32, BFLOAT16 = {"dtype": "float32"}, {"dtype": "bfloat16"}


def test_a_choice_is_tried_once() -> None:
    tried = [{"choice": FLOAT32, "output_tokens_per_s": 3.0}]
    assert untried([FLOAT32, BFLOAT16], tried) == [BFLOAT16]


def test_the_fastest_choice_is_used() -> None:
    tried = [
        {"choice": FLOAT32, "output_tokens_per_s": 3.0},
        {"choice": BFLOAT16, "output_tokens_per_s": 5.0},
    ]
    assert fastest(tried) == BFLOAT16


def test_a_choice_that_failed_is_not_the_fastest() -> None:
    tried = [
        {"choice": FLOAT32, "output_tokens_per_s": 0.0, "error": "unsupported"},
        {"choice": BFLOAT16, "output_tokens_per_s": 0.1},
    ]
    assert fastest(tried) == BFLOAT16
