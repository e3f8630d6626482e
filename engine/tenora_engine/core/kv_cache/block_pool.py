"""The pool of KV blocks: who holds each block, and which freed blocks still carry a prefix.

Every block is in exactly one of three states: held (reference count > 0), cached (count 0, but
its content can be found by hash) or free. Cached blocks are given out again in least recently
used order once no free block is left.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class OutOfBlocksError(Exception):
    """No block is free; the caller preempts and tries again."""


class BlockPool:
    """Allocation, sharing and reuse of `num_blocks` blocks. Not thread-safe."""

    def __init__(self, num_blocks: int, *, prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self._prefix_cache = prefix_cache
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._root_of: dict[int, bytes] = {}
        self._blocks_of_root: dict[bytes, set[int]] = {}
        self._purged_while_held: set[int] = set()
        self._to_zero: list[int] = []

    @property
    def num_free(self) -> int:
        """Blocks that carry nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache holds."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - self.num_free - self.num_cached

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with reference count 1. All or nothing.

        Raises:
            OutOfBlocksError: fewer than `count` blocks are free or cached.
        """
        if not self.can_allocate(count):
            raise OutOfBlocksError
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._ref_counts[block] = 1
        return block

    def _forget(self, block: int) -> None:
        digest = self._hash_of.pop(block)
        del self._block_of[digest]
        root = self._root_of.pop(block)
        siblings = self._blocks_of_root[root]
        siblings.discard(block)
        if not siblings:
            del self._blocks_of_root[root]

    def match_prefix(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of `hashes`, each with one more reference."""
        blocks = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            self._ref_counts[block] += 1
            self._cached.pop(block, None)
            blocks.append(block)
        return blocks

    def register(self, block: int, digest: bytes, root: bytes) -> None:
        """Make a held, fully computed block findable. A hash that is known already stays as is."""
        if not self._prefix_cache or digest in self._block_of or block in self._hash_of:
            return
        self._hash_of[block] = digest
        self._block_of[digest] = block
        self._root_of[block] = root
        self._blocks_of_root.setdefault(root, set()).add(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block of one table.

        The tail is released first, so that parents outlive their children in the cache.
        """
        for block in reversed(list(blocks)):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] > 0:
                continue
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._free.append(block)
                if block in self._purged_while_held:
                    self._purged_while_held.discard(block)
                    self._to_zero.append(block)

    def purge(self, roots: Iterable[bytes]) -> int:
        """Forget every block below `roots`; returns how many there were.

        Their memory is due for zeroing at once, or when the sequence that holds it ends.
        """
        count = 0
        for root in roots:
            for block in list(self._blocks_of_root.get(root, ())):
                self._forget(block)
                count += 1
                if block in self._cached:
                    del self._cached[block]
                    self._free.append(block)
                    self._to_zero.append(block)
                else:
                    self._purged_while_held.add(block)
        return count

    def take_blocks_to_zero(self) -> list[int]:
        """Purged blocks whose memory must be zeroed before the next step writes to it."""
        blocks, self._to_zero = self._to_zero, []
        return blocks
