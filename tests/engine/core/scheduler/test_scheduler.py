"""Policy of the scheduler, without a model: a step is what `schedule` says it is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_engine.core.kv_cache.block_pool import BlockPool
from tenora_engine.core.messages import AddSequence
from tenora_engine.core.scheduler.scheduler import ScheduledSequence, Scheduler, SchedulerLimits
from tenora_engine.core.sequence import Sequence, Status
from tenora_engine.protocol.errors import AdapterUnavailableError, EngineError


class Adapters:
    """Availability that tests set by hand."""

    def __init__(self) -> None:
        self.loading: set[str] = set()
        self.broken: set[str] = set()
        self.held: dict[str, int] = {}

    def is_resident(self, digest: str) -> bool:
        return digest not in self.loading and digest not in self.broken

    def load_error(self, digest: str) -> EngineError | None:
        return AdapterUnavailableError("gone") if digest in self.broken else None

    def acquire(self, digest: str) -> None:
        self.held[digest] = self.held.get(digest, 0) + 1

    def release(self, digest: str) -> None:
        self.held[digest] -= 1


class Harness:
    """A scheduler whose steps sample token 7 for everybody."""

    def __init__(
        self, *, blocks: int = 64, tokens: int = 32, running: int = 8, slots: int = 4
    ) -> None:
        self.adapters = Adapters()
        limits = SchedulerLimits(
            max_running_sequences=running,
            max_step_tokens=tokens,
            max_device_adapters=slots,
            block_size=4,
        )
        self.pool = BlockPool(blocks)
        self.scheduler = Scheduler(limits, self.pool, self.adapters)
        self.count = 0

    def add(
        self,
        prompt: int = 8,
        output: int = 4,
        *,
        key: str = "a",
        adapter: str | None = None,
        priority: int = 0,
        token: int | None = None,
    ) -> Sequence:
        self.count += 1
        request = AddSequence(
            request_id=f"r{self.count}",
            token_ids=tuple([self.count if token is None else token] * prompt),
            max_tokens=output,
            temperature=0.0,
            top_p=1.0,
            seed=0,
            stop_token_ids=(),
            adapter_digest=adapter,
            cache_root=b"r" * 32,
            fairness_key=key,
            weight=1.0,
            priority=priority,
        )
        sequence = Sequence.of(request, now=0.0, arrival_index=self.count)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        scheduled: list[ScheduledSequence] = self.scheduler.schedule(0.0)
        samples = [(item, item.samples) for item in scheduled]
        for item, does_sample in samples:
            self.scheduler.record_computed(item)
            if does_sample:
                self.scheduler.record_sampled(item.sequence, 7)
                if item.sequence.num_output_tokens >= item.sequence.max_tokens:
                    self.scheduler.finish(item.sequence)
        return {item.sequence.request.request_id: item.num_tokens for item in scheduled}


def test_decodes_go_before_prefill_chunks_within_the_budget() -> None:
    harness = Harness(tokens=10)
    harness.add(prompt=8)
    assert harness.step() == {"r1": 8}
    harness.add(prompt=20)
    assert harness.step() == {"r1": 1, "r2": 9}
    assert harness.step() == {"r1": 1, "r2": 9}
    assert harness.step() == {"r1": 1, "r2": 2}


def test_a_sequence_that_waits_for_its_adapter_does_not_block_others() -> None:
    harness = Harness()
    harness.adapters.loading = {"x"}
    harness.add(adapter="x")
    harness.add(adapter="y")
    harness.add()
    assert set(harness.step()) == {"r2", "r3"}
    harness.adapters.loading = set()
    assert "r1" in harness.step()


def test_distinct_adapters_of_a_step_never_exceed_the_slots() -> None:
    harness = Harness(slots=2)
    for name in "xyzx":
        harness.add(adapter=name)
    assert set(harness.step()) == {"r1", "r2", "r4"}
    assert harness.scheduler.num_running_adapters == 2


def test_a_broken_adapter_fails_its_own_requests_only() -> None:
    harness = Harness()
    harness.adapters.broken = {"x"}
    bad, good = harness.add(adapter="x"), harness.add(adapter="y")
    failed = harness.scheduler.take_failed()
    assert [sequence for sequence, _ in failed] == [bad]
    assert set(harness.step()) == {good.request.request_id}


def test_preempts_the_latest_arrival_and_resumes_it_with_its_output() -> None:
    harness = Harness(blocks=6)
    first, second = harness.add(prompt=8, output=8), harness.add(prompt=8, output=8)
    while not second.num_preemptions:
        harness.step()
    assert first.status is Status.RUNNING
    assert second.status is Status.WAITING
    kept = second.num_output_tokens
    while harness.scheduler.has_work:
        harness.step()
    assert second.num_output_tokens == 8 > kept > 0
    assert harness.pool.num_held == 0


def test_cached_prompt_tokens_are_fixed_at_first_admission() -> None:
    harness = Harness(blocks=6)
    harness.add(prompt=9, output=1, token=5)
    harness.step()
    again = harness.add(prompt=9, output=1, token=5)
    assert harness.step() == {again.request.request_id: 1}
    assert again.num_cached_tokens == 8


def test_last_prompt_token_is_always_computed() -> None:
    harness = Harness()
    harness.add(prompt=8, output=1, token=5)
    harness.step()
    again = harness.add(prompt=8, output=1, token=5)
    assert harness.step() == {again.request.request_id: 4}


def test_the_least_served_key_goes_first() -> None:
    harness = Harness(running=1)
    for _ in range(3):
        harness.add(output=2, key="greedy")
    modest = harness.add(output=2, key="modest")
    order = []
    while harness.scheduler.has_work:
        order += [key for key in harness.step() if key not in order]
    assert order.index(modest.request.request_id) == 1


def test_a_key_that_returns_earns_no_credit_for_idling() -> None:
    harness = Harness(running=1)
    harness.add(output=4, key="busy")
    harness.step()
    harness.add(key="back")
    counters = harness.scheduler.counters
    assert counters.served("back") == counters.served("busy") > 0


def test_priority_orders_inside_a_key() -> None:
    harness = Harness(running=1)
    harness.add(priority=5)
    urgent = harness.add(priority=0)
    assert set(harness.step()) == {urgent.request.request_id}


def test_abort_frees_everything_in_each_state() -> None:
    harness = Harness(running=1)
    running, waiting = harness.add(adapter="x"), harness.add()
    harness.step()
    harness.scheduler.finish(running)
    harness.scheduler.finish(waiting)
    assert not harness.scheduler.has_work
    assert harness.pool.num_held == 0
    assert harness.adapters.held == {"x": 0}


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(1, 20),
            st.integers(1, 6),
            st.sampled_from("abc"),
            st.sampled_from([None, "x", "y", "z"]),
            st.booleans(),
        ),
        max_size=25,
    ),
    blocks=st.integers(7, 20),
    tokens=st.integers(3, 40),
    slots=st.integers(1, 3),
)
def test_every_sequence_ends_and_nothing_is_left_over(
    jobs: list[tuple[int, int, str, str | None, bool]], blocks: int, tokens: int, slots: int
) -> None:
    harness = Harness(blocks=blocks, tokens=tokens, running=4, slots=slots)
    sequences = []
    for prompt, output, key, adapter, aborts in jobs:
        sequence = harness.add(prompt, output, key=key, adapter=adapter)
        sequences.append((sequence, aborts))
        step = harness.step()
        assert sum(step.values()) <= tokens
        assert harness.scheduler.num_running_adapters <= slots
        if aborts and sequence.status is not Status.FINISHED:
            harness.scheduler.finish(sequence)
    for _ in range(2000):
        if not harness.scheduler.has_work:
            break
        assert harness.step(), "a step with work must make progress"
    assert not harness.scheduler.has_work
    assert harness.pool.num_held == 0
    assert all(count == 0 for count in harness.adapters.held.values())
    for sequence, aborts in sequences:
        if not aborts:
            assert sequence.num_output_tokens == sequence.max_tokens
