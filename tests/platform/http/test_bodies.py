"""Strict JSON: what is refused, and which field the refusal names."""

from typing import Annotated

import msgspec
import pytest

from tenora_platform.errors import InvalidInput
from tenora_platform.http.bodies import Body, decode_body


class _Inner(msgspec.Struct):
    name: str


class _Sample(Body, frozen=True, kw_only=True):
    number: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    items: list[_Inner] = msgspec.field(default_factory=list)
    labels: dict[str, int] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"number": true}', "number"),
        (b'{"number": "0.7"}', "number"),
        (b'{"number": 2.0001}', "number"),
        (b'{"number": -1}', "number"),
        (b'{"items": {}}', "items"),
        (b'{"items": [{"name": "a"}, {"name": 1}]}', "items[1].name"),
        (b'{"items": [{}]}', "items[0].name"),
        (b'{"labels": {"a": "b"}}', "labels"),
        (b"[]", None),
        (b"null", None),
    ],
)
def test_names_the_field_at_fault(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidInput) as refusal:
        decode_body(body, _Sample)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"NaN",
        b'{"number": NaN}',
        b'{"number": Infinity}',
        b'{"number": 1e400}',
        b'{"number": 1' + b"0" * 400 + b"}",
        b'{"items": "\\ud800"}',
        b'{"items": "\\udc00 low half first"}',
        b'{"items": "\xff"}',
        b'{"items": "\xed\xa0\x80"}',
        b'{"\\ud800": 1}',
        b"[" * 100_000,
        b'{"items": ' + b"[" * 100_000,
        b"\xef\xbb\xbf{}",
    ],
    ids=repr,
)
def test_refuses_what_is_not_json_text(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_body(body, _Sample)


def test_ignores_unknown_fields() -> None:
    assert decode_body(b'{"number": 1, "chat_id": {"deep": [1]}}', _Sample).number == 1.0


def test_no_string_with_a_lone_surrogate_gets_through() -> None:
    decoded = decode_body(b'{"items": [{"name": "\\ud83d\\ude00\\u2028"}]}', _Sample)
    assert decoded.items[0].name == "😀\u2028"
