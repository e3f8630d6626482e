"""Content hashes of KV blocks: a SHA-256 chain from a keyed root.

The root (made by the front) covers tenant scope, model, adapter, dtype and block size, so two
blocks share a hash only if everything that decides their contents is equal.
"""

import hashlib
import struct
from collections.abc import Sequence


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """32-byte hash of one full block that follows `parent`. Tokens are framed as int32."""
    return hashlib.sha256(parent + struct.pack(f"<{len(token_ids)}i", *token_ids)).digest()


def extend_hashes(
    hashes: list[bytes], root: bytes, token_ids: Sequence[int], block_size: int
) -> None:
    """Append to `hashes` until each full block of `token_ids` has one. Mutates `hashes`."""
    for index in range(len(hashes), len(token_ids) // block_size):
        parent = hashes[-1] if hashes else root
        start = index * block_size
        hashes.append(chain_hash(parent, token_ids[start : start + block_size]))
