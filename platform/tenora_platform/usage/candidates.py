"""From an engine's record to a row that may be settled, or to a reason why it may not be.

Pure: no I/O. A record that cannot be settled is set aside whole; it never stops the others.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from tenora_engine.protocol.messages import UsageRecord
from tenora_platform.billing.ledger import UsageCharge
from tenora_platform.billing.rating import Price, are_countable, rate_outcome
from tenora_platform.kit.clock import from_epoch_ms
from tenora_platform.kit.ids import new_id
from tenora_platform.kit.periods import zone
from tenora_platform.usage.attribution import Attribution

RejectionReason = Literal[
    "unreadable_attribution", "impossible_counts", "unknown_price", "conflict", "unstorable"
]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is ready to be settled: its row and what it costs."""

    record: UsageRecord
    row: dict[str, Any]
    charge: UsageCharge


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was set aside, and why. `detail` names no content."""

    record: UsageRecord
    reason: RejectionReason
    detail: str

    def row(self, recorded_at: datetime) -> dict[str, Any]:
        """The row of `usage_rejections` that keeps the whole record."""
        return {
            "id": new_id(),
            "request_id": _storable(self.record.request_id),
            "reason": self.reason,
            "detail": _storable(self.detail),
            "replica_id": _storable(self.record.replica_id),
            "replica_seq": self.record.seq,
            "payload_sha256": payload_sha256(self.record),
            "payload": msgspec.msgpack.encode(self.record),
            "recorded_at": recorded_at,
        }


def open_envelope(record: UsageRecord) -> Attribution | Rejection:
    """Whom the record belongs to, or why that cannot be known."""
    try:
        attribution = Attribution.decode(record.attribution)
        zone(attribution.time_zone)
    except (msgspec.DecodeError, ValueError) as error:
        return Rejection(record=record, reason="unreadable_attribution", detail=str(error))
    return attribution


def to_candidate(
    record: UsageRecord,
    attribution: Attribution,
    prices: Mapping[UUID, Price],
    recorded_at: datetime,
) -> Candidate | Rejection:
    """The record rated by the price it was admitted under, or why that cannot be done."""
    if not are_countable(record.usage):
        return Rejection(record=record, reason="impossible_counts", detail=repr(record.usage))
    price = prices.get(attribution.price_version_id)
    if price is None:
        detail = f"price version {attribution.price_version_id}"
        return Rejection(record=record, reason="unknown_price", detail=detail)
    try:
        started_at, completed_at = map(
            from_epoch_ms, (record.started_at_ms, record.completed_at_ms)
        )
    except (ValueError, OverflowError, OSError) as error:
        return Rejection(record=record, reason="unstorable", detail=str(error))
    charge = UsageCharge(
        tenant_id=attribution.tenant_id,
        project_id=attribution.project_id,
        api_key_id=attribution.api_key_id,
        request_id=record.request_id,
        amount_nanousd=rate_outcome(record.outcome, record.usage, price),
        price_version_id=price.id,
        completed_at=completed_at,
        time_zone=attribution.time_zone,
    )
    row = {
        **msgspec.structs.asdict(attribution),
        **_facts(record),
        "amount_nanousd": charge.amount_nanousd,
        "started_at": started_at,
        "completed_at": completed_at,
        "recorded_at": recorded_at,
    }
    return Candidate(record=record, row=row, charge=charge)


def payload_sha256(record: UsageRecord) -> str:
    """Hash of what a record says, whichever replica and journal position it comes from."""
    payload = msgspec.structs.replace(record, replica_id="", seq=0)
    return hashlib.sha256(msgspec.msgpack.encode(payload)).hexdigest()


def _facts(record: UsageRecord) -> dict[str, Any]:
    """The columns that the engine knows."""
    return {
        "request_id": record.request_id,
        "adapter_digest": record.usage.adapter_digest,
        "outcome": record.outcome,
        "error_code": record.error_code,
        "estimated": record.estimated,
        "prompt_tokens": record.usage.prompt_tokens,
        "cached_tokens": record.usage.cached_prompt_tokens,
        "completion_tokens": record.usage.completion_tokens,
        "computed_tokens": record.usage.computed_tokens,
        "preemptions": record.usage.preemptions,
        "execution_hash": record.execution_hash,
        "identity": msgspec.to_builtins(record.identity),
        "timings": msgspec.to_builtins(record.timings),
        "replica_id": record.replica_id,
        "replica_seq": record.seq,
        "payload_sha256": payload_sha256(record),
    }


def _storable(text: str) -> str:
    """`text` without what PostgreSQL's text cannot hold."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
