"""Roots of the prefix cache's hash chains: who may share prefixes with whom.

A root is a keyed hash over typed, length-framed fields, so no two different tuples of fields
have one encoding, and nobody outside this process can compute a root. The key lives as long as
the core's cache does.
"""

import hashlib
import hmac
import secrets
from collections import defaultdict

import msgspec


class CacheRoots:
    """Makes roots, and remembers which ones a scope has used, to purge them."""

    def __init__(
        self, *, model_digest: str, kv_dtype: str, block_size: int, key: bytes | None = None
    ) -> None:
        self._key = key or secrets.token_bytes(32)
        self._common = (model_digest, kv_dtype, block_size)
        self._used: defaultdict[bytes, set[bytes]] = defaultdict(set)

    def root_of(self, cache_scope: bytes, adapter_digest: str | None) -> bytes:
        """The 32-byte root for prompts of this scope under this adapter (None: the base)."""
        fields = ("tenora-cache-root-v1", cache_scope, adapter_digest, *self._common)
        root = hmac.digest(self._key, msgspec.msgpack.encode(fields), hashlib.sha256)
        self._used[cache_scope].add(root)
        return root

    def roots_of(self, cache_scope: bytes) -> tuple[bytes, ...]:
        """Every root that the scope has used."""
        return tuple(self._used.get(cache_scope, ()))
