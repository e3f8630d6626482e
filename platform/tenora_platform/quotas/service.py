"""Admission in business verbs: reserve, settle, release, check, project.

The policy is here (what is charged, how a refusal reads, what happens without Redis); the
arithmetic is in the store's scripts. README.md has the life of a reservation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import msgspec

from tenora_platform.auth.principal import Principal
from tenora_platform.errors import Conflict, ServiceUnavailable
from tenora_platform.kit.clock import Clock
from tenora_platform.quotas.demand import Demand
from tenora_platform.quotas.errors import QuotaExceeded
from tenora_platform.quotas.lease_keeper import LeaseKeeper
from tenora_platform.quotas.limits import MAX_RATE, MAX_VALUE, ScopeKind
from tenora_platform.quotas.reservation import QuotaCheck, Reservation, limit_states
from tenora_platform.quotas.seeding import (
    BudgetKey,
    BudgetSeeder,
    BudgetSource,
    budget_projection,
)
from tenora_platform.quotas.store import (
    QuotaStore,
    ReserveCall,
    ReserveReply,
    StoreUnavailableError,
)

_SEED_ATTEMPTS = 3


class QuotaService:
    """Decides which requests may run. Closed by default: without Redis nothing is admitted.

    `keeper` renews the reservations that this process makes; a process that only settles has
    none. Every method raises `ServiceUnavailable` (503, `retry-after`) while Redis does not
    answer; then the outcome is unknown, and repeating the call is safe.
    """

    def __init__(
        self,
        store: QuotaStore,
        budgets: BudgetSource,
        clock: Clock,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        self._store = store
        self._seeder = BudgetSeeder(budgets, store)
        self._clock = clock
        self._keeper = keeper

    async def reserve(
        self,
        principal: Principal,
        *,
        request_id: str,
        prompt_tokens: int,
        max_tokens: int,
        max_tokens_given: bool,
        cost_nanousd: int,
    ) -> Reservation:
        """Take the request's worst case from every limit, or nothing.

        `cost_nanousd` is the price of `prompt_tokens` plus `max_tokens`. Where the client named
        no maximum, the reservation may carry a smaller `max_tokens`: the engine must stop there.
        A second call with the same `request_id` returns the first one's reservation.

        Raises:
            QuotaExceeded: a limit refuses; nothing was taken.
            Conflict: the reservation of this `request_id` has already ended.
            ServiceUnavailable: Redis or, for a budget it does not know, the ledger is away.
        """
        demand = Demand(
            principal=principal,
            at=self._clock.now(),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            max_tokens_given=max_tokens_given,
            cost_nanousd=cost_nanousd,
        )
        call = demand.call(request_id, "take")
        reply = await self._ask(principal, call)
        states = limit_states(principal.limits, call, reply)
        if reply.status == "ended":
            raise Conflict("This request has already ended. Send it again under a new id.")
        if reply.binding is not None:
            raise QuotaExceeded(states[reply.binding], states)
        if self._keeper is not None:
            self._keeper.hold(principal.tenant_id, msgspec.structs.replace(call, mode="adopt"))
        return Reservation(
            tenant_id=principal.tenant_id,
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=reply.output,
            cost_nanousd=call.cost,
            was_capped=reply.output < max_tokens,
            states=states,
        )

    async def check(
        self,
        principal: Principal,
        *,
        prompt_tokens: int,
        max_tokens: int,
        max_tokens_given: bool,
        cost_nanousd: int,
    ) -> QuotaCheck:
        """What `reserve` would answer now. Takes nothing."""
        demand = Demand(
            principal=principal,
            at=self._clock.now(),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            max_tokens_given=max_tokens_given,
            cost_nanousd=cost_nanousd,
        )
        call = demand.call("", "check")
        reply = await self._ask(principal, call)
        states = limit_states(principal.limits, call, reply)
        binding = None if reply.binding is None else states[reply.binding]
        return QuotaCheck(max_tokens=reply.output, states=states, binding=binding)

    async def settle(
        self,
        tenant_id: UUID,
        request_id: str,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        cost_nanousd: int,
    ) -> None:
        """Replace a reservation by what was used. Idempotent: the first settlement counts.

        The cost stays held until a projection covers it. A reservation that expired meanwhile is
        charged now; an unknown one needs nothing, because the ledger has the truth.
        """
        tokens = prompt_tokens + completion_tokens
        if min(prompt_tokens, completion_tokens, cost_nanousd) < 0:
            raise ValueError("tokens and cost must not be negative")
        self._drop(tenant_id, request_id)
        with _store_errors():
            await self._store.settle(
                tenant_id,
                request_id,
                tokens=min(tokens, MAX_RATE),
                cost=min(cost_nanousd, MAX_VALUE),
            )

    async def release(self, tenant_id: UUID, request_id: str) -> None:
        """Give everything back: nothing ran. Idempotent; a settled reservation stays settled."""
        self._drop(tenant_id, request_id)
        with _store_errors():
            await self._store.release(tenant_id, request_id)

    async def renew(self, tenant_id: UUID, request_ids: Sequence[str]) -> tuple[str, ...]:
        """Keep running reservations alive for another lease; returns those that were lost."""
        with _store_errors():
            return await self._store.renew(tenant_id, request_ids)

    async def project_budget(
        self,
        tenant_id: UUID,
        scope_kind: ScopeKind,
        scope_id: str,
        period_name: str,
        *,
        committed_nanousd: int,
        seq: int,
        covered_request_ids: Sequence[str],
    ) -> None:
        """Tell admission what the ledger has booked. Repeat until it succeeds; any order works.

        `seq` grows with every entry of this budget and period. `covered_request_ids` are requests
        whose entries are contained in `committed_nanousd`; their holds end.
        """
        key = BudgetKey(
            tenant_id=tenant_id, scope_kind=scope_kind, scope_id=scope_id, period_name=period_name
        )
        projection = budget_projection(key, committed_nanousd, seq, tuple(covered_request_ids))
        with _store_errors():
            await self._store.project(tenant_id, projection)

    async def _ask(self, principal: Principal, call: ReserveCall) -> ReserveReply:
        """Ask the store; when it lacks a budget's committed amount, seed it and ask again."""
        if not call.charges:
            return ReserveReply(status="admitted", output=call.output)
        with _store_errors():
            for _ in range(_SEED_ATTEMPTS):
                asked_at = self._seeder.num_landed
                reply = await self._store.reserve(principal.tenant_id, call)
                if reply.status != "cold":
                    return reply
                lacking = [
                    BudgetKey.of(principal.tenant_id, principal.limits[index], call.charges[index])
                    for index in reply.cold
                ]
                await self._seeder.seed(lacking, asked_at=asked_at)
        raise _unavailable()

    def _drop(self, tenant_id: UUID, request_id: str) -> None:
        if self._keeper is not None:
            self._keeper.drop(tenant_id, request_id)


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except (StoreUnavailableError, TimeoutError) as error:
        raise _unavailable() from error


def _unavailable() -> ServiceUnavailable:
    return ServiceUnavailable(
        "Quotas cannot be checked right now, so the request was not admitted. Retry shortly.",
        retry_after_s=1,
    )
