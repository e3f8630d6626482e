"""The slow twin of the scripts: quota state as plain Python, every sum recomputed from scratch.

It keeps reservations and nothing else that could disagree with them: concurrency and holds are
counted anew for every question. Rates are leaky buckets in fractions of a unit.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from tenora_platform.quotas.store import LEASE_MS, Charge, ReserveCall

MINUTE_MS = 60_000
COVERED_MS = 10 * MINUTE_MS
UNCOVERED_MS = 60 * MINUTE_MS


@dataclass
class Held:
    """A reservation: what it charged, and what of it still counts."""

    call: ReserveCall
    lease_until: int
    state: str = "live"
    tokens: int = 0
    cost: int = 0
    uncovered: set[str] = field(default_factory=set)
    forget_at: int | None = None


@dataclass
class Bucket:
    """A rate: `level` units as of `at`."""

    level: Fraction = Fraction(0)
    at: int = 0


@dataclass
class Verdict:
    """What a call to reserve answers, as far as the model knows it."""

    status: str
    binding: int | None = None
    waits: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    cold: list[int] = field(default_factory=list)


class Oracle:
    """One tenant. Every method takes the time, in milliseconds."""

    def __init__(self) -> None:
        self.reservations: dict[str, Held] = {}
        self.buckets: dict[str, Bucket] = {}
        self.committed: dict[str, tuple[int, int]] = {}

    def reserve(self, now: int, call: ReserveCall) -> Verdict:
        self._expire(now)
        known = self.reservations.get(call.request_id) if call.mode != "check" else None
        if known and known.state != "live" and (call.mode, known.state) != ("adopt", "expired"):
            return Verdict("ended")
        if call.mode == "adopt":
            self._adopt(now, call, known)
            return Verdict("admitted")
        cold = [
            index
            for index, charge in enumerate(call.charges)
            if charge.kind == "budget" and charge.field not in self.committed
        ]
        if cold:
            return Verdict("cold", cold=cold)
        waits = [self._wait(now, charge) for charge in call.charges]
        status, binding = "admitted", None
        if any(waits) and known is None:
            status = "refused"
            worst = -1 if -1 in waits else max(waits)
            binding = waits.index(worst)
        elif call.mode == "take" and known is None:
            self._take(now, call)
        remaining = [self._remaining(now, charge) for charge in call.charges]
        return Verdict(status, binding, waits, remaining)

    def settle(self, now: int, request_id: str, tokens: int, cost: int) -> None:
        held = self.reservations.get(request_id)
        if held is None or held.state == "settled":
            return
        self._refund(now, held, "tokens", held.tokens - tokens)
        held.state, held.cost, held.tokens = "settled", cost, tokens
        self._plan_forgetting(now, held)

    def release(self, now: int, request_id: str) -> None:
        held = self.reservations.get(request_id)
        if held is None or held.state == "settled":
            return
        self._refund(now, held, "tokens", held.tokens)
        if held.state != "released":
            self._refund(now, held, "requests", 1)
        held.state, held.cost, held.tokens = "released", 0, 0
        self._plan_forgetting(now, held)

    def renew(self, now: int, request_id: str) -> bool:
        """Whether the reservation is lost."""
        held = self.reservations.get(request_id)
        if held is None or held.state == "expired":
            return True
        if held.state == "live":
            held.lease_until = now + LEASE_MS
        return False

    def project(self, now: int, budget: Charge, committed: int, seq: int, covered: str) -> None:
        if seq > self.committed.get(budget.field, (0, -1))[1]:
            self.committed[budget.field] = (committed, seq)
        held = self.reservations.get(covered)
        if held is not None:
            held.uncovered.discard(budget.field)
            if held.state == "settled":
                self._plan_forgetting(now, held)

    def used(self, charge: Charge) -> int:
        """Concurrency, or committed and held money, counted from the reservations."""
        if charge.kind == "concurrency":
            live = [held for held in self.reservations.values() if held.state == "live"]
            return sum(any(c.field == charge.field for c in held.call.charges) for held in live)
        holds = [h.cost for h in self.reservations.values() if charge.field in h.uncovered]
        return self.committed.get(charge.field, (0, 0))[0] + sum(holds)

    def _expire(self, now: int) -> None:
        for held in self.reservations.values():
            if held.state == "live" and held.lease_until <= now:
                held.state, held.cost = "expired", 0
                self._plan_forgetting(now, held)
        for request_id, held in tuple(self.reservations.items()):
            if held.state != "live" and held.forget_at is not None and held.forget_at <= now:
                if held.cost:
                    for budget in held.uncovered:
                        self.committed.pop(budget, None)
                del self.reservations[request_id]

    def _plan_forgetting(self, now: int, held: Held) -> None:
        done = held.state == "settled" and not held.uncovered
        held.forget_at = now + (COVERED_MS if done else UNCOVERED_MS)

    def _adopt(self, now: int, call: ReserveCall, known: Held | None) -> None:
        if known is None:
            self._take(now, call)
        elif known.state == "expired":
            known.state, known.cost, known.lease_until = "live", call.cost, now + LEASE_MS

    def _take(self, now: int, call: ReserveCall) -> None:
        held = Held(call=call, lease_until=now + LEASE_MS, cost=call.cost)
        for charge in call.charges:
            if charge.kind == "rate":
                level = min(self._level(now, charge), Fraction(charge.capacity))
                self.buckets[charge.field] = Bucket(level + charge.amount, now)
                held.tokens = charge.amount if charge.unit == "tokens" else held.tokens
            elif charge.kind == "budget":
                held.uncovered.add(charge.field)
        if not held.uncovered:
            held.cost = 0
        self.reservations[call.request_id] = held

    def _level(self, now: int, charge: Charge) -> Fraction:
        bucket = self.buckets.get(charge.field, Bucket(at=now))
        drained = Fraction(charge.value * (now - bucket.at), MINUTE_MS)
        return max(Fraction(0), bucket.level - drained)

    def _refund(self, now: int, held: Held, unit: str, units: int) -> None:
        for charge in held.call.charges:
            if charge.kind == "rate" and charge.unit == unit:
                level = self._level(now, charge)
                if level > 0 or units < 0:
                    self.buckets[charge.field] = Bucket(max(Fraction(0), level - units), now)

    def _wait(self, now: int, charge: Charge) -> int:
        if charge.kind == "rate":
            if charge.amount > charge.capacity:
                return -1
            level = min(self._level(now, charge), Fraction(charge.capacity))
            excess = level + charge.amount - charge.capacity
            return max(0, -(-excess * MINUTE_MS // charge.value)) if excess > 0 else 0
        if self.used(charge) + charge.amount <= charge.value:
            return 0
        never = charge.kind == "concurrency" and charge.amount > charge.value
        return -1 if never else charge.wait_ms

    def _remaining(self, now: int, charge: Charge) -> int:
        if charge.kind == "rate":
            level = min(self._level(now, charge), Fraction(charge.capacity))
            return int(charge.capacity - level)
        return max(0, charge.value - self.used(charge))
