"""The worker with real quotas on a real Redis: a hold becomes a booked amount, and ends."""

from tenora_engine.protocol.fake import FakeEngine
from tenora_engine.protocol.messages import GenerateRequest, Usage
from tenora_platform.auth.principal import Principal
from tenora_platform.auth.scope import mint
from tenora_platform.billing.ledger import BudgetLedger
from tenora_platform.billing.rating import rate
from tenora_platform.db.session import Database
from tenora_platform.kit.clock import SystemClock
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.limits import Limit
from tenora_platform.quotas.redis_store import RedisQuotaStore
from tenora_platform.quotas.service import QuotaService
from tenora_platform.usage.attribution import Attribution
from tenora_platform.worker import Worker
from tests.support.usage_records import attribution_of, publish_price


def principal_of(attribution: Attribution) -> Principal:
    budget = Limit(
        id=str(new_id()),
        scope_kind="tenant",
        scope_id=str(attribution.tenant_id),
        kind="budget",
        value=10_000,
        period="month",
    )
    return Principal(
        scope=mint(attribution.tenant_id),
        project_id=attribution.project_id,
        api_key_id=attribution.api_key_id,
        api_key_scopes=frozenset(),
        tenant_time_zone="UTC",
        limits=(budget,),
    )


async def test_a_hold_becomes_a_booked_amount(database: Database, redis_url: str) -> None:
    clock = SystemClock()
    price = await publish_price(database, clock, per_mtok=(10**7, 10**6, 2 * 10**7))
    attribution = attribution_of(new_id(), price)
    principal = principal_of(attribution)
    store = RedisQuotaStore(redis_url, deadline_s=10)
    quotas = QuotaService(store, BudgetLedger(database), clock)
    engine = FakeEngine(script=["a", "b"])
    request_id = str(new_id())
    worst = rate(Usage(prompt_tokens=3, completion_tokens=100), price)
    reservation = await quotas.reserve(
        principal,
        request_id=request_id,
        prompt_tokens=3,
        max_tokens=100,
        max_tokens_given=True,
        cost_nanousd=worst,
    )
    assert reservation.states[0].held == worst == 2030
    request = GenerateRequest(
        request_id=request_id,
        token_ids=(1, 2, 3),
        template_version="text",
        max_tokens=100,
        attribution=attribution.encode(),
    )
    async for _ in engine.generate(request):
        pass
    await Worker(database, engine, quotas, clock).drain_once()
    verdict = await quotas.check(
        principal, prompt_tokens=0, max_tokens=1, max_tokens_given=True, cost_nanousd=0
    )
    (budget,) = verdict.states
    assert (budget.committed, budget.held) == (3 * 10 + 3 * 20, 0)
    await store.close()
