"""One request from a valid call to a settled reservation: admit, run, settle.

Steps 3 to 6 and 8 of a request. Authentication (2) and the event stream (7) are the edge's, and
nothing here speaks HTTP. Per token nothing is done beyond passing the event on.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import structlog

from tenora_engine.protocol.client import EngineClient
from tenora_engine.protocol.errors import EngineError, EngineUnavailableError
from tenora_engine.protocol.messages import Finished, GenerateEvent, PreparedPrompt
from tenora_platform.adapters.schemas import ResolvedModel
from tenora_platform.adapters.service import AdapterService
from tenora_platform.auth.principal import Principal
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.rating import rate
from tenora_platform.engine_errors import from_engine
from tenora_platform.engine_facts import EngineFacts
from tenora_platform.errors import PlatformError
from tenora_platform.inference.admission import Admission, Plan
from tenora_platform.inference.parsing import Call
from tenora_platform.kit.clock import Clock
from tenora_platform.observability.metrics import Metrics
from tenora_platform.quotas.errors import QuotaExceeded
from tenora_platform.quotas.lease_keeper import LeaseKeeper
from tenora_platform.quotas.reservation import Reservation
from tenora_platform.quotas.service import QuotaService

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class InferenceService:
    """Admits calls against their tenant's quotas and runs them on the engine."""

    engine: EngineClient
    facts: EngineFacts
    adapters: AdapterService
    prices: PriceBook
    quotas: QuotaService
    leases: LeaseKeeper
    clock: Clock
    metrics: Metrics

    async def admit(self, principal: Principal, call: Call, request_id: str) -> Admission:
        """Decide everything about `call` and reserve its worst case; `run` the result at once.

        Raises:
            ModelNotFound: nothing that this tenant may call has the name.
            InvalidInput: the template, the tokenizer or the window refuses the prompt.
            QuotaExceeded: a limit refuses; nothing was taken.
            ServiceUnavailable: a part that admission needs is away.
        """
        info = await self.facts.info()
        resolved = await self.adapters.resolve(
            principal.scope, call.model, base_model=info.base_model
        )
        prompt = await self._prepare(call, resolved)
        price = await self.prices.current(
            info.base_model,
            self.clock.now(),
            target="base" if resolved.adapter is None else "adapter",
        )
        plan = Plan(
            request_id=request_id,
            principal=principal,
            call=call,
            info=info,
            resolved=resolved,
            prompt=prompt,
            price=price,
        )
        reservation = await self._reserve(plan)
        return Admission(plan=plan, reservation=reservation, admitted_at=self.clock.now())

    async def run(self, admission: Admission) -> AsyncGenerator[GenerateEvent, None]:
        """Deltas, then one `Finished`, whose usage is settled before it is yielded.

        Closing the generator aborts the engine's work; the engine's record then settles what was
        used. Raises the engine's errors as PlatformError.
        """
        plan = admission.plan
        outcome = "aborted"
        try:
            async with aclosing(self.engine.generate(admission.engine_request())) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        outcome = event.reason
                        await self._settle(admission, event)
                    yield event
        except EngineError as error:
            outcome = "error"
            await self._give_up(plan, error)
            raise from_engine(error, param=plan.call.prompt_field) from error
        finally:
            self.leases.drop(plan.principal.tenant_id, plan.request_id)
            if outcome in ("aborted", "error"):
                self.metrics.generation_failed(outcome)

    async def _prepare(self, call: Call, resolved: ResolvedModel) -> PreparedPrompt:
        try:
            return await self.engine.prepare(
                msgspec.structs.replace(call.prompt, adapter=resolved.adapter)
            )
        except EngineError as error:
            raise from_engine(error, param=call.prompt_field) from error

    async def _reserve(self, plan: Plan) -> Reservation:
        try:
            return await self.quotas.reserve(
                plan.principal,
                request_id=plan.request_id,
                prompt_tokens=plan.worst_case.prompt_tokens,
                max_tokens=plan.worst_case.completion_tokens,
                max_tokens_given=plan.call.max_tokens is not None,
                cost_nanousd=rate(plan.worst_case, plan.price),
            )
        except QuotaExceeded as refusal:
            self.metrics.quota_refused(refusal.binding.limit.kind)
            raise
        except asyncio.CancelledError:
            # the client left while Redis was asked: the reservation may exist all the same
            await self._release(plan)
            raise

    async def _settle(self, admission: Admission, finished: Finished) -> None:
        """Turn the reservation into what was used. Without Redis the worker does it later."""
        plan, usage = admission.plan, finished.usage
        self.metrics.generation_finished(finished.reason, usage, finished.timings)
        try:
            await self.quotas.settle(
                plan.principal.tenant_id,
                plan.request_id,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cost_nanousd=rate(usage, plan.price),
            )
        except PlatformError as error:
            _log.warning("quota.settlement_deferred", inference_id=plan.request_id, code=error.code)

    async def _give_up(self, plan: Plan, error: EngineError) -> None:
        """Free the reservation of a request that cost nothing.

        A replica that went silent may still be working: then the hold stays until the replica's
        record settles it or its lease ends.
        """
        _log.warning("inference.failed", inference_id=plan.request_id, code=error.code)
        if not isinstance(error, EngineUnavailableError):
            await self._release(plan)

    async def _release(self, plan: Plan) -> None:
        try:
            await self.quotas.release(plan.principal.tenant_id, plan.request_id)
        except PlatformError as error:
            _log.warning("quota.release_deferred", inference_id=plan.request_id, code=error.code)
