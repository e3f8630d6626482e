"""Invariants of the block pool: no block owned twice; held + cached + free is the total."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenora_engine.core.kv_cache.block_hash import chain_hash, extend_hashes
from tenora_engine.core.kv_cache.block_pool import BlockPool, OutOfBlocksError

ROOT = b"r" * 32


def _publish(pool: BlockPool, blocks: list[int], tokens: list[int], root: bytes = ROOT) -> None:
    hashes: list[bytes] = []
    extend_hashes(hashes, root, tokens, 4)
    for block, digest in zip(blocks, hashes, strict=False):
        pool.register(block, digest, root)


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(4)
    assert pool.num_free == 3


def test_released_prefix_is_found_again_and_shared() -> None:
    pool = BlockPool(4)
    tokens = list(range(8))
    blocks = pool.allocate(2)
    _publish(pool, blocks, tokens)
    pool.release(blocks)
    assert (pool.num_free, pool.num_cached, pool.num_held) == (2, 2, 0)
    hashes: list[bytes] = []
    extend_hashes(hashes, ROOT, tokens, 4)
    assert pool.match_prefix(hashes) == blocks
    assert pool.match_prefix(hashes) == blocks
    pool.release(blocks)
    assert pool.num_held == 2


def test_tail_of_a_prefix_is_reused_before_its_head() -> None:
    pool = BlockPool(2)
    tokens = list(range(8))
    blocks = pool.allocate(2)
    _publish(pool, blocks, tokens)
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[1]]


def test_same_tokens_below_another_root_or_parent_never_match() -> None:
    tokens = [1, 2, 3, 4]
    assert chain_hash(b"a" * 32, tokens) != chain_hash(b"b" * 32, tokens)
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    _publish(pool, blocks, tokens)
    assert pool.match_prefix([chain_hash(b"x" * 32, tokens)]) == []


def test_linear_token_collisions_do_not_share_a_hash() -> None:
    """Regression class of weak block hashes: (+31, -1) in adjacent tokens."""
    assert chain_hash(ROOT, [10, 50]) != chain_hash(ROOT, [41, 49])


def test_purge_frees_unheld_blocks_and_zeroes_held_ones_later() -> None:
    pool = BlockPool(4)
    held, idle = pool.allocate(1), pool.allocate(1)
    _publish(pool, held, [1, 2, 3, 4])
    _publish(pool, idle, [5, 6, 7, 8])
    pool.release(idle)
    assert pool.purge([ROOT]) == 2
    assert pool.take_blocks_to_zero() == idle
    pool.release(held)
    assert pool.take_blocks_to_zero() == held
    assert pool.num_free == 4


class PoolMachine(RuleBasedStateMachine):
    """Random tables over a small vocabulary, so that prefixes are shared often."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.tables: list[list[int]] = []

    @rule(tokens=st.lists(st.integers(0, 2), min_size=4, max_size=16), root=st.sampled_from("ab"))
    def start(self, tokens: list[int], root: str) -> None:
        key = root.encode() * 32
        hashes: list[bytes] = []
        extend_hashes(hashes, key, tokens, 4)
        table = self.pool.match_prefix(hashes)
        missing = len(tokens) // 4 - len(table)
        try:
            table += self.pool.allocate(missing)
        except OutOfBlocksError:
            self.pool.release(table)
            return
        for block, digest in zip(table, hashes, strict=True):
            self.pool.register(block, digest, key)
        self.tables.append(table)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.tables:
            index = data.draw(st.integers(0, len(self.tables) - 1))
            self.pool.release(self.tables.pop(index))

    @rule(root=st.sampled_from("ab"))
    def purge(self, root: str) -> None:
        self.pool.purge([root.encode() * 32])
        self.pool.take_blocks_to_zero()

    @invariant()
    def states_partition_the_pool(self) -> None:
        held = {block for table in self.tables for block in table}
        assert len(held) == self.pool.num_held
        assert held.isdisjoint(self.pool._free)
        assert held.isdisjoint(self.pool._cached)
        assert len(set(self.pool._free)) == len(self.pool._free)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_held == 12

    @invariant()
    def no_table_holds_a_block_twice(self) -> None:
        for table in self.tables:
            assert len(set(table)) == len(table)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
