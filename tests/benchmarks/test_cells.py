"""What each visit sends, and in which order systems are visited."""

from peers.cells import ADAPTERS, BASE, Amount, Cell, alternate, cells_for

AMOUNT = Amount(prompt_tokens=8, output_tokens=4, rounds=2)


def test_no_system_is_visited_twice_before_all_others_were() -> None:
    order = list(alternate("ABC", 3))
    assert "".join(system for _, system in order) == "ABCABCABC"
    assert [visit for visit, _ in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_lone_requests_use_one_adapter_and_crowds_mix_them() -> None:
    assert [cell.label for cell in cells_for([1, 16])] == [
        "base, c1", "base, c16", "one adapter, c1", "mixed adapters, c16",
    ]  # fmt: skip


def test_every_system_is_sent_the_same_requests() -> None:
    cell = Cell("mixed adapters", 16)
    assert AMOUNT.bodies(cell, visit=1) == AMOUNT.bodies(cell, visit=1)


def test_no_prompt_is_ever_sent_twice() -> None:
    prompts = [
        tuple(body["prompt"])
        for visit in range(3)
        for cell in cells_for([1, 16])
        for body in AMOUNT.bodies(cell, visit) + AMOUNT.warm_up(cell, visit, is_cold=True)
    ]
    assert len(set(prompts)) == len(prompts)


def test_mixed_requests_name_all_adapters_in_turn() -> None:
    bodies = AMOUNT.bodies(Cell("mixed adapters", 16), visit=0)
    assert len(bodies) == 32
    assert [body["model"] for body in bodies] == list(ADAPTERS) * 4


def test_base_requests_name_the_base_model() -> None:
    assert {body["model"] for body in AMOUNT.bodies(Cell("base", 4), visit=0)} == {BASE}


def test_only_a_cold_system_is_warmed_up_at_full_concurrency() -> None:
    cell = Cell("base", 16)
    assert len(AMOUNT.warm_up(cell, 0, is_cold=True)) == 16
    assert len(AMOUNT.warm_up(cell, 1, is_cold=False)) == 1
