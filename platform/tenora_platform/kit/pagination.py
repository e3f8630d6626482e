"""Keyset cursors: opaque, URL-safe, and stable while rows are added in front of them."""

import base64
import binascii
from datetime import datetime

import msgspec

from tenora_platform.errors import InvalidInput


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The sort key of the last row of a page: an instant, then an id that breaks ties."""

    at: datetime
    key: str


def encode_cursor(cursor: Cursor) -> str:
    """`cursor` as text for a client to hand back unread."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(cursor)).decode().rstrip("=")


def decode_cursor(text: str, *, param: str = "after") -> Cursor:
    """The cursor that `encode_cursor` made. Raises InvalidInput for anything else."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        cursor = msgspec.msgpack.decode(
            base64.b64decode(padded, altchars=b"-_", validate=True), type=Cursor
        )
    except (UnicodeEncodeError, binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise InvalidInput("the cursor is not one that this API returned", param=param) from error
    if cursor.at.tzinfo is None or "\0" in cursor.key:
        raise InvalidInput("the cursor is not one that this API returned", param=param)
    return cursor
