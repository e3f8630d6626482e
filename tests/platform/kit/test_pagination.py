from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.errors import InvalidInput
from tenora_platform.kit.pagination import Cursor, decode_cursor, encode_cursor


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80),
)
def test_a_cursor_survives_the_round_trip(at: datetime, key: str) -> None:
    text = encode_cursor(Cursor(at=at, key=key))
    assert decode_cursor(text) == Cursor(at=at, key=key)
    assert text.isascii()
    assert "=" not in text


@given(st.text(max_size=60))
def test_anything_else_is_refused_as_bad_input(text: str) -> None:
    try:
        decode_cursor(text)
    except InvalidInput as error:
        assert error.param == "after"  # noqa: PT017 - the property is "nothing but InvalidInput"


def test_a_cursor_without_offset_or_with_nul_is_refused() -> None:
    naive = Cursor(at=datetime(2026, 1, 1), key="x")  # noqa: DTZ001
    nul = Cursor(at=datetime(2026, 1, 1, tzinfo=UTC), key="\0")
    for cursor in (naive, nul):
        with pytest.raises(InvalidInput):
            decode_cursor(encode_cursor(cursor))
