"""Cache roots: equal for equal fields, different for anything else, useless to outsiders."""

from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.front.cache_root import CacheRoots


def roots(*, key: bytes = b"k" * 32, block_size: int = 16, model: str = "m") -> CacheRoots:
    return CacheRoots(model_digest=model, kv_dtype="bf16", block_size=block_size, key=key)


scopes = st.binary(max_size=6)
digests = st.none() | st.text("ab", max_size=6)


@given(first=st.tuples(scopes, digests), second=st.tuples(scopes, digests))
def test_equal_exactly_for_equal_scope_and_adapter(
    first: tuple[bytes, str | None], second: tuple[bytes, str | None]
) -> None:
    made = roots()
    assert (made.root_of(*first) == made.root_of(*second)) == (first == second)


def test_fields_are_framed_and_typed() -> None:
    made = roots()
    assert made.root_of(b"a", "bc") != made.root_of(b"ab", "c")
    assert made.root_of(b"a", None) != made.root_of(b"a", "")


def test_every_fact_counts() -> None:
    made = [roots(), roots(key=b"x" * 32), roots(block_size=32), roots(model="n")]
    assert len({one.root_of(b"scope", None) for one in made}) == len(made)


def test_each_life_has_a_key_of_its_own() -> None:
    one, two = (CacheRoots(model_digest="m", kv_dtype="k", block_size=1) for _ in range(2))
    assert one.root_of(b"s", None) != two.root_of(b"s", None)


def test_remembers_the_roots_of_a_scope() -> None:
    made = roots()
    mine = {made.root_of(b"mine", digest) for digest in (None, "a", "a", "b")}
    made.root_of(b"other", None)
    assert set(made.roots_of(b"mine")) == mine
    assert len(mine) == 3
    assert made.roots_of(b"unused") == ()
