"""Stop strings: nothing of one leaks, nothing is swallowed, whatever the pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.text.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What leaves after each piece (and at the end), and whether a stop was found."""
    matcher = StopStrings(stops)
    out = []
    for piece in pieces:
        text, stopped = matcher.push(piece)
        out.append(text)
        if stopped:
            return out, True
    return [*out, matcher.flush()], False


def cut_naively(stops: list[str], text: str) -> str:
    """The specification: grow the text by one character until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def test_stop_over_several_pieces_leaks_nothing() -> None:
    assert run(["DEFGHIJ"], ["abcDEF", "G", "HI", "Jk"]) == (["abc", "", "", ""], True)


def test_text_of_a_false_start_is_released_at_once() -> None:
    assert run(["DEFG"], ["aDE", "x", "y"]) == (["a", "DEx", "y", ""], False)


def test_held_text_is_flushed_when_the_stop_never_comes() -> None:
    assert run(["test"], ["the la", "te"]) == (["the la", "", "te"], False)


def test_long_stop_string_holds_nothing_of_unrelated_text() -> None:
    pieces = ["one", " two", " three"]
    assert run(["z" * 200], pieces) == ([*pieces, ""], False)


@pytest.mark.parametrize("stops", [["STOP", "STOP NOW"], ["STOP NOW", "STOP"]])
def test_of_two_stops_with_one_start_the_shorter_ends_first(stops: list[str]) -> None:
    assert run(stops, ["go ", "STOP NOW", " x"]) == (["go ", ""], True)


def test_stop_in_the_middle_of_a_piece_drops_the_rest() -> None:
    assert run(["B"], ["xA", "yBz"]) == (["xA", "y"], True)


def test_overlapping_restart_is_found() -> None:
    assert run(["aab"], ["aaa", "ab!"]) == (["a", "a"], True)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    pieces=st.lists(st.text("ab", max_size=5), max_size=8),
)
def test_result_depends_on_the_text_alone(stops: list[str], pieces: list[str]) -> None:
    out, _ = run(stops, pieces)
    assert "".join(out) == cut_naively(stops, "".join(pieces))


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=3),
    text=st.text("abc", max_size=20),
)
def test_holds_back_exactly_the_longest_possible_start(stops: list[str], text: str) -> None:
    matcher = StopStrings(stops)
    sent, stopped = matcher.push(text)
    if stopped:
        return
    held = text[len(sent) :]
    starts = [
        text[-size:]
        for size in range(1, len(text) + 1)
        if any(len(stop) > size and stop.startswith(text[-size:]) for stop in stops)
    ]
    assert held == max(starts, key=len, default="")
