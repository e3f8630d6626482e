"""Slots on the device: filled beside the steps, promised, pinned, and given away in turn."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event

import pytest

from tenora_engine.core.adapters.device_residency import PROMISE_S, DeviceResidency
from tenora_engine.core.adapters.residency import RETRY_FAILED_AFTER_S, AdapterResidency
from tenora_engine.core.adapters.weights import AdapterWeights


@dataclass
class World:
    """Host and device with two places, a clock, and copies that a test can hold back.

    The device has memory for adapters of 30 bytes together.
    """

    now: float = 100.0
    copies: list[tuple[int, str]] = field(default_factory=list)
    may_copy: Event = field(default_factory=Event)
    fails: bool = False
    used: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.may_copy.set()
        host = AdapterResidency(
            lambda digest: AdapterWeights(
                digest=digest,
                layers=(),
                size_bytes=25 if digest.startswith("large") else 10,
                total_rank=1,
            ),
            capacity_bytes=1 << 20,
            monotonic=lambda: self.now,
        )
        self.residency = DeviceResidency(host, self, num_slots=2, monotonic=lambda: self.now)

    def fits(self, weights: AdapterWeights) -> bool:
        return sum(self.used.values()) + weights.size_bytes <= 30

    def load(self, lora_index: int, weights: AdapterWeights) -> None:
        assert self.may_copy.wait(10)
        if self.fails:
            raise RuntimeError("out of memory")
        self.copies.append((lora_index, weights.digest))
        self.used[lora_index] = weights.size_bytes

    def unload(self, lora_index: int) -> None:
        del self.used[lora_index]

    def bring(self, digest: str) -> bool:
        """Ask until nothing is loading any more; whether the adapter is in a slot."""
        for _ in range(1000):
            if self.residency.is_resident(digest):
                return True
            if not self.residency.is_loading:
                return False
            time.sleep(0.005)
        raise AssertionError("the load did not end")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.may_copy.set()
    world.residency.close()


def use(world: World, digest: str) -> None:
    world.residency.acquire(digest)
    world.residency.release(digest)


def test_a_step_does_not_wait_for_a_copy(world: World) -> None:
    world.may_copy.clear()
    for _ in range(20):
        assert not world.residency.is_resident("a")
        time.sleep(0.005)
    assert world.residency.is_loading
    world.may_copy.set()
    assert world.bring("a")


def test_each_adapter_has_its_own_slot_while_it_is_pinned(world: World) -> None:
    assert world.bring("a")
    assert world.bring("b")
    slots = {world.residency.lora_index_of("a"), world.residency.lora_index_of("b")}
    assert slots == {0, 1}
    for digest in ("a", "b"):
        world.residency.acquire(digest)
    assert not world.bring("c")
    world.residency.release("a")
    freed = world.residency.lora_index_of("a")
    assert world.bring("c")
    assert world.residency.lora_index_of("c") == freed


def test_evicts_least_recently_wanted_adapter_first(world: World) -> None:
    for digest in ("a", "b", "a"):
        world.now += 1
        assert world.bring(digest)
        use(world, digest)
    assert world.bring("c")
    assert {s.digest for s in world.residency.states(lambda: 0.0) if s.tier == "device"} == {
        "a",
        "c",
    }


def test_a_slot_filled_for_a_waiting_sequence_is_not_taken_from_it(world: World) -> None:
    assert world.bring("a")
    assert world.bring("b")
    assert not world.bring("c")
    world.now += PROMISE_S / 2
    assert world.bring("a")
    world.now += PROMISE_S * 0.75
    assert world.bring("c")
    assert world.bring("a")
    assert [digest for _, digest in world.copies] == ["a", "b", "c"]


def test_a_failed_copy_fails_its_adapter_and_frees_the_slot(world: World) -> None:
    world.fails = True
    assert not world.bring("a")
    error = world.residency.load_error("a")
    assert error is not None
    assert error.code == "adapter_unavailable"
    world.fails = False
    assert world.bring("b")
    assert world.bring("c")
    world.now += RETRY_FAILED_AFTER_S + 1
    use(world, "b")
    assert world.bring("a")
    assert world.residency.load_error("a") is None


def test_an_adapter_waits_for_memory_that_running_ones_hold(world: World) -> None:
    assert world.bring("a")
    world.residency.acquire("a")
    assert not world.bring("large")
    world.residency.release("a")
    assert world.bring("large")
    assert world.used == {world.residency.lora_index_of("large"): 25}
