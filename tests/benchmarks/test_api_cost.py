"""Roles of processes and shares of processor time, without any process."""

import pytest
from bench_api_cost import difference, markdown, platform_share, role_of, summarise, visits


@pytest.mark.parametrize(
    ("command_line", "role"),
    [
        (["python", "-m", "tenora_engine.core", "ipc:///run/core.sock"], "core"),
        (["python", "-P", "-m", "tenora_engine", "--listen-url", "x"], "front"),
        (["python", "-P", "-m", "tenora_platform", "api"], "api"),
        (["python", "-P", "-m", "tenora_platform", "up", "--demo"], "supervisor"),
        (["postgres: tenora tenora [local] idle"], "postgres"),
        (["sh"], "other"),
    ],
)
def test_a_process_is_known_by_its_command_line(command_line: list[str], role: str) -> None:
    assert role_of(command_line) == role


def test_a_role_that_appears_later_counts_from_zero() -> None:
    assert difference({"core": 5.0, "api": 1.0}, {"core": 3.5}) == {"core": 1.5, "api": 1.0}


def test_the_platform_is_what_the_engine_did_not_take() -> None:
    assert platform_share({"core": 8.0, "front": 1.0, "api": 0.5, "redis": 0.5}) == pytest.approx(
        0.1
    )
    assert platform_share({}) == 0.0


def test_each_system_goes_first_in_turn() -> None:
    assert [order for _, order in visits(3)] == [(0, 1), (1, 0), (0, 1)]


def test_the_cost_is_the_median_of_ratios_within_an_alternation() -> None:
    """The machine halves its speed; the ratio of medians would be another one."""
    measured = [
        {"tenora": tenora, "tenora-engine": bare, "processor_s": {"core": 9.0, "api": 1.0}}
        for tenora, bare in ((98.0, 100.0), (48.0, 50.0), (90.0, 100.0))
    ]
    found = summarise(measured)
    assert found["cost"] == pytest.approx(0.04)
    assert "| base | 90.0 | 100.0 | 4.0% | 10.0% |" in markdown({"base": found})
