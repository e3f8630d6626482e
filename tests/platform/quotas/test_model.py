"""Random lives of a tenant: the scripts in Redis agree with the oracle after every step."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.store import Charge, Projection, ReserveCall, ReserveMode, ReserveReply
from tests.platform.quotas.oracle import Oracle

IDS = st.sampled_from([f"r{number}" for number in range(8)])
SMALL = st.integers(0, 12)
STEM = "project:p:month"


class QuotaMachine(RuleBasedStateMachine):
    """Reserve, settle, release, renew, adopt, book, project, edit limits, let time pass."""

    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.now = 1_764_000_000_000
        self.store = self.loop.run(self._open())
        self.tenant_id = uuid4()
        self.oracle = Oracle()
        self.values = {"requests": 12, "tokens": 25, "concurrency": 3, "budget": 40}
        self.served = 0
        self.booked: list[tuple[str, int]] = []

    async def _open(self) -> RedisQuotaStore:
        return RedisQuotaStore(self.redis_url, clock_ms=lambda: self.now, deadline_s=10)

    def teardown(self) -> None:
        self._rest()
        self.loop.run(self.store.close())
        self.loop.close()

    @rule(seconds=st.one_of(st.integers(0, 45), st.sampled_from([660, 3660])))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1000 + 7

    @rule(name=st.sampled_from(["requests", "tokens"]), value=st.integers(10, 30))
    def edit_rate(self, name: str, value: int) -> None:
        self.values[name] = value

    @rule(name=st.sampled_from(["concurrency", "budget"]), value=st.integers(0, 40))
    def edit_limit(self, name: str, value: int) -> None:
        self.values[name] = value

    @rule(
        request_id=IDS,
        tokens=st.integers(1, 12),
        cost=SMALL,
        mode=st.sampled_from(["take", "take", "take", "check", "adopt"]),
    )
    def reserve(self, request_id: str, tokens: int, cost: int, mode: ReserveMode) -> None:
        self._ask(self._call(request_id, tokens, cost, mode))

    @rule(request_id=IDS, tokens=st.integers(0, 14), cost=SMALL)
    def settle(self, request_id: str, tokens: int, cost: int) -> None:
        known = self.oracle.reservations.get(request_id)
        if known is not None and known.state != "settled":
            self.booked.append((request_id, cost))
        self.oracle.settle(self.now, request_id, tokens, cost)
        self.loop.run(self.store.settle(self.tenant_id, request_id, tokens=tokens, cost=cost))

    @rule(tokens=st.integers(1, 3), cost=st.integers(1, 3))
    def serve_one_request(self, tokens: int, cost: int) -> None:
        """The usual life, under an id of its own: so that books and projections come about."""
        self.served += 1
        self._ask(self._call(f"served{self.served}", tokens + 1, cost + 1, "take"))
        self.settle(f"served{self.served}", tokens, cost)

    @rule(request_id=IDS, tokens=st.integers(1, 3), cost=st.integers(1, 3))
    def keep_alive_through_an_outage(self, request_id: str, tokens: int, cost: int) -> None:
        """Reserved, expired, put back by its keeper."""
        self._ask(self._call(request_id, tokens, cost, "take"))
        self.now += 30_000
        self._ask(self._call("", 1, 0, "check"))
        self._ask(self._call(request_id, tokens, cost, "adopt"))

    @rule(request_id=IDS)
    def release(self, request_id: str) -> None:
        self.oracle.release(self.now, request_id)
        self.loop.run(self.store.release(self.tenant_id, request_id))

    @rule(request_id=IDS)
    def renew(self, request_id: str) -> None:
        is_lost = self.oracle.renew(self.now, request_id)
        lost = self.loop.run(self.store.renew(self.tenant_id, [request_id]))
        assert lost == ((request_id,) if is_lost else ())

    @rule(data=st.data())
    def project_any_entry_in_any_order(self, data: Any) -> None:
        if self.booked:
            seq = data.draw(st.integers(1, len(self.booked)))
            self._project(seq, self.booked[seq - 1][0])

    @invariant()
    def nothing_is_negative_and_sums_agree(self) -> None:
        self._ask(self._call("", 1, 0, "check"))
        held = self.loop.run(self._hash("held"))
        live = self.loop.run(self._hash("live"))
        assert all(value > 0 for value in (*held.values(), *live.values()))
        budget = self._charges(0, 0)[3]
        committed = self.oracle.committed[budget.field][0]
        assert held.get(budget.field, 0) == self.oracle.used(budget) - committed

    def _rest(self) -> None:
        """Everything ends and is booked: then nothing is held."""
        for request_id in tuple(self.oracle.reservations):
            self.settle(request_id, 1, 5)
        for seq, (request_id, _) in enumerate(self.booked, start=1):
            self._project(seq, request_id)
        assert self.loop.run(self._hash("held")) == {}
        assert self.loop.run(self._hash("live")) == {}

    def _project(self, seq: int, covered: str) -> None:
        committed = sum(cost for _, cost in self.booked[:seq])
        budget = self._charges(0, 0)[3]
        self.oracle.project(self.now, budget, committed, seq, covered)
        projection = Projection(
            field=budget.field, stem=STEM, committed=committed, seq=seq, covered=(covered,)
        )
        self.loop.run(self.store.project(self.tenant_id, projection))

    def _ask(self, call: ReserveCall) -> None:
        """Ask both; a cold budget is seeded from the books in both, then both are asked again."""
        verdict, reply = self._both(call)
        if verdict.status == "cold":
            self._project(len(self.booked), "")
            verdict, reply = self._both(call)
        assert reply.binding == verdict.binding
        if call.mode != "adopt":
            assert [state.remaining for state in reply.states] == verdict.remaining
        if reply.status == "refused":
            assert [state.wait_ms for state in reply.states] == verdict.waits

    def _both(self, call: ReserveCall) -> tuple[Any, ReserveReply]:
        verdict = self.oracle.reserve(self.now, call)
        reply = self.loop.run(self.store.reserve(self.tenant_id, call))
        assert (reply.status, list(reply.cold)) == (verdict.status, verdict.cold)
        return verdict, reply

    def _call(self, request_id: str, tokens: int, cost: int, mode: ReserveMode) -> ReserveCall:
        charges = self._charges(tokens, cost)
        return ReserveCall(request_id=request_id, mode=mode, charges=charges, output=1, cost=cost)

    def _charges(self, tokens: int, cost: int) -> tuple[Charge, ...]:
        requests, rate = self.values["requests"], self.values["tokens"]
        slots, budget = self.values["concurrency"], self.values["budget"]
        return (
            _rate("requests", requests, 1),
            _rate("tokens", rate, tokens),
            Charge(
                kind="concurrency",
                unit="requests",
                field="tenant:t",
                value=slots,
                capacity=slots,
                amount=1,
                wait_ms=1000,
            ),
            Charge(
                kind="budget",
                unit="nanousd",
                field=f"{STEM}:2026-11",
                stem=STEM,
                value=budget,
                capacity=budget,
                amount=cost,
                wait_ms=90_000_000,
            ),
        )

    async def _hash(self, name: str) -> dict[str, int]:
        key = f"tenora:quota:{{{self.tenant_id}}}:{name}"
        stored: dict[Any, Any] = await self.store._redis.hgetall(key)
        return {field.decode(): int(value) for field, value in stored.items()}


def _rate(unit: Any, value: int, amount: int) -> Charge:
    field = f"api_key:k:{unit}"
    return Charge(kind="rate", unit=unit, field=field, value=value, capacity=value, amount=amount)


def run_machine(redis_url: str, *, examples: int, steps: int) -> None:
    machine = type("BoundQuotaMachine", (QuotaMachine,), {"redis_url": redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_scripts_agree_with_the_oracle(redis_url: str) -> None:
    run_machine(redis_url, examples=30, steps=25)


@pytest.mark.slow
def test_scripts_agree_with_the_oracle_for_long(redis_url: str) -> None:
    run_machine(redis_url, examples=800, steps=60)
