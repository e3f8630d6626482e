"""What operators do with prices, and what is asked of the books."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.models import PriceVersion
from tenora_platform.billing.rating import PriceTarget
from tenora_platform.billing.repository import LedgerRepository, PriceRepository
from tenora_platform.errors import Conflict, InvalidInput
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id

MAX_NANOUSD_PER_MTOK: Final = 10**15
"""A million dollars per million tokens. It keeps every amount far inside 64 bits."""


class BillingService:
    """Business verbs on prices and books. Works in a system session and never commits."""

    def __init__(self, session: AsyncSession, clock: Clock) -> None:
        self._prices = PriceRepository(session)
        self._ledger = LedgerRepository(session)
        self._clock = clock

    async def publish_price(
        self,
        *,
        base_model: str,
        target: PriceTarget,
        input_nanousd_per_mtok: int,
        cached_input_nanousd_per_mtok: int,
        output_nanousd_per_mtok: int,
        effective_at: datetime | None = None,
    ) -> PriceVersion:
        """A new version in force from `effective_at`, by default now. It can never be changed.

        Raises InvalidInput for a negative or huge price, a cached rate above the full rate or a
        date in the past, and Conflict if a version with the same date exists.
        """
        now = self._clock.now()
        since = effective_at or now
        if since < now:
            raise InvalidInput("A price cannot hold from the past on.", param="effective_at")
        _check_price("input_nanousd_per_mtok", input_nanousd_per_mtok, MAX_NANOUSD_PER_MTOK)
        _check_price("output_nanousd_per_mtok", output_nanousd_per_mtok, MAX_NANOUSD_PER_MTOK)
        _check_price(
            "cached_input_nanousd_per_mtok", cached_input_nanousd_per_mtok, input_nanousd_per_mtok
        )
        version = PriceVersion(
            id=new_id(),
            base_model=base_model,
            target=target,
            effective_at=since,
            input_nanousd_per_mtok=input_nanousd_per_mtok,
            cached_input_nanousd_per_mtok=cached_input_nanousd_per_mtok,
            output_nanousd_per_mtok=output_nanousd_per_mtok,
            created_at=now,
        )
        if not await self._prices.add(version):
            raise Conflict("A price with this effective date exists. Choose another instant.")
        return version

    async def list_prices(self, base_model: str) -> Sequence[PriceVersion]:
        """All versions for a base model, newest first."""
        return await self._prices.list_versions(base_model)

    async def ledger_total(self, tenant_id: UUID, *, start: datetime, end: datetime) -> int:
        """The sum of a tenant's ledger entries effective in `[start, end)`, in nano-USD."""
        return await self._ledger.total(tenant_id, start=start, end=end)


def _check_price(param: str, value: int, maximum: int) -> None:
    if not 0 <= value <= maximum:
        raise InvalidInput(f"{param} must be 0 to {maximum} nano-USD.", param=param)
