"""Row ids: UUIDv7, so that new rows sit together at the end of an index."""

import secrets
import time
from uuid import UUID

_VERSION_7 = 7 << 76
_VARIANT_RFC = 2 << 62


def new_id() -> UUID:
    """A fresh UUIDv7 (RFC 9562, section 5.7): 48 bits of milliseconds, then 74 random bits.

    Ids made in different milliseconds sort by time; nothing may rely on order within one.
    """
    milliseconds = time.time_ns() // 1_000_000
    return UUID(
        int=(milliseconds & ((1 << 48) - 1)) << 80
        | _VERSION_7
        | secrets.randbits(12) << 64
        | _VARIANT_RFC
        | secrets.randbits(62)
    )
