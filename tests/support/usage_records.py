"""Engine usage records made to order, and a price to rate them by."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from tenora_engine.protocol.messages import (
    ExecutionIdentity,
    Outcome,
    SamplingParams,
    Timings,
    Usage,
    UsageBatch,
    UsageRecord,
)
from tenora_platform.billing.rating import Price
from tenora_platform.billing.service import BillingService
from tenora_platform.db.session import Database
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id
from tenora_platform.usage.attribution import Attribution

IDENTITY = ExecutionIdentity(
    model_digest="m",
    tokenizer_digest="t",
    template_version="v",
    adapter_digest=None,
    engine_version="0",
    kernel_backend="reference",
    weight_dtype="float32",
    kv_dtype="float32",
    attention_backend="reference",
    topology="cpu:1",
    prefix_cache="private",
    sampling=SamplingParams(),
)


async def publish_price(
    database: Database, clock: Clock, *, per_mtok: tuple[int, int, int] = (10, 1, 20)
) -> Price:
    """A price in force now for a base model of its own: (input, cached input, output)."""
    async with database.system() as session:
        version = await BillingService(session, clock).publish_price(
            base_model=f"base-{new_id().hex}",
            target="base",
            input_nanousd_per_mtok=per_mtok[0],
            cached_input_nanousd_per_mtok=per_mtok[1],
            output_nanousd_per_mtok=per_mtok[2],
        )
    return Price(
        id=version.id,
        base_model=version.base_model,
        target="base",
        effective_at=version.effective_at,
        input_nanousd_per_mtok=per_mtok[0],
        cached_input_nanousd_per_mtok=per_mtok[1],
        output_nanousd_per_mtok=per_mtok[2],
    )


def attribution_of(
    tenant_id: UUID,
    price: Price,
    *,
    project_id: UUID | None = None,
    api_key_id: UUID | None = None,
    time_zone: str = "UTC",
) -> Attribution:
    """An envelope for a chat request to the base model."""
    return Attribution(
        tenant_id=tenant_id,
        project_id=project_id or new_id(),
        api_key_id=api_key_id or new_id(),
        model=price.base_model,
        base_model=price.base_model,
        price_version_id=price.id,
        endpoint="/v1/chat/completions",
        streamed=False,
        time_zone=time_zone,
    )


def usage_record(
    attribution: Attribution,
    *,
    request_id: str | None = None,
    seq: int = 1,
    outcome: Outcome = "stop",
    prompt_tokens: int = 100,
    cached_prompt_tokens: int = 0,
    completion_tokens: int = 10,
    completed_at: datetime = datetime(2026, 11, 29, 12, tzinfo=UTC),
) -> UsageRecord:
    """One journal row; a request id of its own unless one is given."""
    completed_at_ms = int(completed_at.timestamp() * 1000)
    return UsageRecord(
        replica_id="replica",
        seq=seq,
        request_id=request_id or str(new_id()),
        outcome=outcome,
        usage=Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_prompt_tokens=cached_prompt_tokens,
        ),
        timings=Timings(total_ms=12.5),
        identity=IDENTITY,
        execution_hash=IDENTITY.execution_hash(),
        started_at_ms=completed_at_ms - 1000,
        completed_at_ms=completed_at_ms,
        attribution=attribution.encode(),
        error_code="engine_error" if outcome == "error" else None,
    )


def batch_of(*records: UsageRecord) -> UsageBatch:
    """A batch as the engine would send it: `seq` ascending from 1."""
    numbered = [msgspec.structs.replace(one, seq=n) for n, one in enumerate(records, start=1)]
    return UsageBatch(replica_id="replica", records=tuple(numbered))
