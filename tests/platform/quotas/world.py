"""What the quota tests are made of: a clock that is set, a ledger that is told, a caller."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from tenora_platform.auth.principal import Principal
from tenora_platform.auth.scope import mint
from tenora_platform.quotas.limits import BudgetPeriod, Limit, LimitKind, ScopeKind
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.reservation import Reservation
from tenora_platform.quotas.service import QuotaService


class ManualClock:
    """A clock that only moves when told to; it also drives the scripts through `ms`."""

    def __init__(self, at: datetime = datetime(2026, 11, 29, 12, tzinfo=UTC)) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def ms(self) -> int:
        return round(self.at.timestamp() * 1000)

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        self.at += timedelta(seconds=seconds, milliseconds=ms)


class LedgerStub:
    """A `BudgetSource` whose amounts the test sets; it counts how often each was read."""

    def __init__(self) -> None:
        self.amounts: dict[tuple[str, str, str], tuple[int, int]] = {}
        self.reads: Counter[str] = Counter()
        self.error: Exception | None = None

    async def committed(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: str, period_name: str
    ) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        self.reads[f"{tenant_id}:{scope_kind}:{period_name}"] += 1
        return self.amounts.get((scope_kind, scope_id, period_name), (0, 0))


@dataclass
class World:
    """One tenant with its limits, in front of a real Redis."""

    store: RedisQuotaStore
    clock: ManualClock
    ledger: LedgerStub
    service: QuotaService
    tenant_id: UUID = field(default_factory=uuid4)
    project_id: UUID = field(default_factory=uuid4)
    api_key_id: UUID = field(default_factory=uuid4)
    time_zone: str = "UTC"
    limits: tuple[Limit, ...] = ()

    @property
    def principal(self) -> Principal:
        return Principal(
            scope=mint(self.tenant_id),
            project_id=self.project_id,
            api_key_id=self.api_key_id,
            api_key_scopes=frozenset({"inference"}),
            tenant_time_zone=self.time_zone,
            limits=self.limits,
        )

    def limit(
        self,
        kind: LimitKind,
        value: int,
        scope: ScopeKind = "project",
        *,
        period: BudgetPeriod | None = None,
        burst: int | None = None,
    ) -> Limit:
        """A limit on one of this tenant's scopes; a budget is monthly unless said otherwise."""
        ids = {"tenant": self.tenant_id, "project": self.project_id, "api_key": self.api_key_id}
        if kind == "budget" and period is None:
            period = "month"
        return Limit(
            id=str(uuid4()),
            scope_kind=scope,
            scope_id=str(ids[scope]),
            kind=kind,
            value=value,
            period=period,
            burst=burst,
        )

    async def reserve(
        self,
        request_id: str | None = None,
        *,
        prompt: int = 10,
        output: int = 10,
        given: bool = True,
        cost: int = 0,
    ) -> Reservation:
        return await self.service.reserve(
            self.principal,
            request_id=request_id or uuid4().hex,
            prompt_tokens=prompt,
            max_tokens=output,
            max_tokens_given=given,
            cost_nanousd=cost,
        )

    async def settle(
        self, request_id: str, *, prompt: int = 10, completion: int = 0, cost: int = 0
    ) -> None:
        await self.service.settle(
            self.tenant_id,
            request_id,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost_nanousd=cost,
        )

    async def release(self, request_id: str) -> None:
        await self.service.release(self.tenant_id, request_id)

    async def project(
        self,
        committed: int,
        seq: int,
        covered: Sequence[str] = (),
        *,
        scope: ScopeKind = "project",
        period: str = "2026-11",
    ) -> None:
        """Deliver a projection of one of this tenant's budgets."""
        ids = {"tenant": self.tenant_id, "project": self.project_id, "api_key": self.api_key_id}
        await self.service.project_budget(
            self.tenant_id,
            scope,
            str(ids[scope]),
            period,
            committed_nanousd=committed,
            seq=seq,
            covered_request_ids=covered,
        )

    async def used(self, kind: LimitKind) -> int:
        """How much of the only limit of a kind is used now; also lets dead leases expire."""
        seen = await self.service.check(
            self.principal, prompt_tokens=0, max_tokens=1, max_tokens_given=True, cost_nanousd=0
        )
        (state,) = [state for state in seen.states if state.limit.kind == kind]
        return state.used


def make_world(store: RedisQuotaStore, clock: ManualClock) -> World:
    """A tenant without limits."""
    ledger = LedgerStub()
    service = QuotaService(store, ledger, clock)
    return World(store=store, clock=clock, ledger=ledger, service=service)
