"""Which price holds, from memory: admission asks for a price without asking the database.

Versions are immutable, so what is cached is never wrong, only incomplete for at most the TTL: a
version published with an earlier effective date is seen that much later. A record carries the id
of the version it was admitted under and is rated by that one.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from tenora_platform.billing.models import PriceVersion
from tenora_platform.billing.rating import Price, PriceTarget
from tenora_platform.billing.repository import PriceRepository
from tenora_platform.db.session import Database
from tenora_platform.errors import ServiceUnavailable
from tenora_platform.kit.clock import Clock


@dataclass(frozen=True, slots=True)
class _Shelf:
    """All versions of one base model, newest first, as they were at `read_at`."""

    read_at: float
    prices: tuple[Price, ...]


class PriceBook:
    """Reads prices for one process; safe to share between tasks."""

    def __init__(self, database: Database, clock: Clock, ttl_s: float = 30.0) -> None:
        self._database = database
        self._clock = clock
        self._ttl_s = ttl_s
        self._shelves: dict[str, _Shelf] = {}
        self._by_id: dict[UUID, Price] = {}

    async def current(
        self, base_model: str, at: datetime, *, target: PriceTarget = "base"
    ) -> Price:
        """The price of `base_model`, plain or with an adapter, that holds at the instant `at`.

        Raises ServiceUnavailable if none holds (unpriced work is refused, not given away), or if
        it is not cached and the database is away.
        """
        for price in await self._prices(base_model):
            if price.target == target and price.effective_at <= at:
                return price
        raise ServiceUnavailable(
            f"No price holds for this model ({target}). The operator has to publish one.",
            code="price_unavailable",
            retry_after_s=30,
        )

    async def by_ids(self, ids: Collection[UUID]) -> dict[UUID, Price]:
        """The versions with these ids; unknown ids are left out."""
        missing = set(ids) - self._by_id.keys()
        if missing:
            async with self._database.system() as session:
                versions = await PriceRepository(session).get_versions(missing)
            self._by_id.update((version.id, _price(version)) for version in versions)
        return {price_id: self._by_id[price_id] for price_id in ids if price_id in self._by_id}

    async def _prices(self, base_model: str) -> tuple[Price, ...]:
        now = self._clock.monotonic()
        shelf = self._shelves.get(base_model)
        if shelf is None or now >= shelf.read_at + self._ttl_s:
            async with self._database.system() as session:
                versions = await PriceRepository(session).list_versions(base_model)
            shelf = _Shelf(read_at=now, prices=tuple(_price(version) for version in versions))
            self._shelves[base_model] = shelf
        return shelf.prices


def _price(version: PriceVersion) -> Price:
    return Price(
        id=version.id,
        base_model=version.base_model,
        target=cast("PriceTarget", version.target),
        effective_at=version.effective_at,
        input_nanousd_per_mtok=version.input_nanousd_per_mtok,
        cached_input_nanousd_per_mtok=version.cached_input_nanousd_per_mtok,
        output_nanousd_per_mtok=version.output_nanousd_per_mtok,
    )
