"""Settlement: a batch of the engine's records becomes usage rows, ledger entries and budgets.

One transaction a batch. A record that was settled before changes nothing, so batches may be
delivered any number of times, in any order, to several workers at once.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.exc import DBAPIError

from tenora_engine.protocol.messages import UsageBatch, UsageRecord
from tenora_platform.billing.ledger import BudgetProjection, Ledger
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.db.session import Database, refuses_a_value
from tenora_platform.kit.clock import Clock
from tenora_platform.usage.candidates import Candidate, Rejection, open_envelope, to_candidate
from tenora_platform.usage.models import UsageRecordRow
from tenora_platform.usage.repository import UsageJournal


class SettledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose cost is booked, now or by an earlier delivery."""

    tenant_id: UUID
    request_id: str
    prompt_tokens: int
    completion_tokens: int
    cost_nanousd: int


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch. Every record is in `requests` or in `rejections`."""

    requests: tuple[SettledRequest, ...] = ()
    projections: tuple[BudgetProjection, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    num_booked: int = 0
    num_duplicates: int = 0

    def __add__(self, other: "Settlement") -> "Settlement":
        return Settlement(
            requests=self.requests + other.requests,
            projections=self.projections + other.projections,
            rejections=self.rejections + other.rejections,
            num_booked=self.num_booked + other.num_booked,
            num_duplicates=self.num_duplicates + other.num_duplicates,
        )


class SettlementService:
    """Settles batches. Safe to use from several tasks and processes at once."""

    def __init__(self, database: Database, prices: PriceBook, clock: Clock) -> None:
        self._database = database
        self._prices = prices
        self._clock = clock

    async def settle_batch(self, batch: UsageBatch) -> Settlement:
        """Book what is new in `batch`, set aside what cannot be booked, and report both.

        When this returns, all of it is committed; when it raises, nothing is. Of two different
        records of one request the first stays and the second is rejected as a conflict.

        Raises ServiceUnavailable if the database is away: deliver the batch again.
        """
        return await self._settle(batch.records)

    async def _settle(self, records: Sequence[UsageRecord]) -> Settlement:
        candidates, rejections = await self._examine(records)
        try:
            return await self._commit(candidates, rejections)
        except DBAPIError as error:
            if not refuses_a_value(error):
                raise
            # The database refuses a value of some record: find it, and book the others.
            if len(records) > 1:
                middle = len(records) // 2
                return await self._settle(records[:middle]) + await self._settle(records[middle:])
            refused = Rejection(
                record=records[0], reason="unstorable", detail=type(error.orig).__name__
            )
            return await self._commit([], [refused])

    async def _examine(
        self, records: Sequence[UsageRecord]
    ) -> tuple[list[Candidate], list[Rejection]]:
        opened = [(record, open_envelope(record)) for record in records]
        priced = {one.price_version_id for _, one in opened if not isinstance(one, Rejection)}
        prices = await self._prices.by_ids(priced)
        now = self._clock.now()
        judged = [
            one if isinstance(one, Rejection) else to_candidate(record, one, prices, now)
            for record, one in opened
        ]
        candidates = [one for one in judged if isinstance(one, Candidate)]
        return candidates, [one for one in judged if isinstance(one, Rejection)]

    async def _commit(
        self, candidates: Sequence[Candidate], rejections: list[Rejection]
    ) -> Settlement:
        firsts = {one.charge.request_id: one for one in reversed(candidates)}
        async with self._database.system() as session:
            journal = UsageJournal(session)
            ledger = Ledger(session, self._clock)
            await ledger.lock({one.charge.tenant_id for one in candidates})
            ordered = [one for one in candidates if firsts[one.charge.request_id] is one]
            new_ids = await journal.insert_new([one.row for one in ordered])
            booked = [one for one in ordered if one.charge.request_id in new_ids]
            await ledger.book([one.charge for one in booked])
            stored = await journal.get_rows(firsts.keys())
            agreed = [one for one in candidates if _says_the_same(one, stored)]
            conflicts = [_conflict(one) for one in candidates if not _says_the_same(one, stored)]
            await journal.reject([one.row(self._clock.now()) for one in rejections + conflicts])
            settled = {one.charge.request_id: one.charge for one in agreed}
            projections = await ledger.project(list(settled.values()))
        return Settlement(
            requests=tuple(_settled(stored[request_id]) for request_id in settled),
            projections=tuple(projections),
            rejections=(*rejections, *conflicts),
            num_booked=len(booked),
            num_duplicates=len(agreed) - len(booked),
        )


def _says_the_same(candidate: Candidate, stored: dict[str, UsageRecordRow]) -> bool:
    payload_sha256: str = candidate.row["payload_sha256"]
    return stored[candidate.charge.request_id].payload_sha256 == payload_sha256


def _conflict(candidate: Candidate) -> Rejection:
    return Rejection(
        record=candidate.record,
        reason="conflict",
        detail="another record of this request was settled first",
    )


def _settled(row: UsageRecordRow) -> SettledRequest:
    return SettledRequest(
        tenant_id=row.tenant_id,
        request_id=row.request_id,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cost_nanousd=row.amount_nanousd,
    )
