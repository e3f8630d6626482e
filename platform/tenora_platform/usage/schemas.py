"""What a tenant sees of its usage records: ids, counts, hashes and money, never text."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from tenora_platform.usage.models import UsageRecordRow
from tenora_platform.usage.service import UsagePage


class UsageRecordBody(msgspec.Struct, frozen=True, kw_only=True):
    """One settled request. `amount_nanousd` follows from the counts and the price version."""

    request_id: str
    project_id: UUID
    api_key_id: UUID
    model: str
    base_model: str
    adapter_id: UUID | None
    adapter_revision: int | None
    adapter_digest: str | None
    endpoint: str
    streamed: bool
    outcome: str
    error_code: str | None
    estimated: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    price_version_id: UUID
    amount_nanousd: int
    execution_hash: str
    timings: dict[str, Any]
    started_at: datetime
    completed_at: datetime
    object: Literal["usage.record"] = "usage.record"


class UsageRecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records, the latest completed first. Pass `next` as `after` to continue."""

    data: list[UsageRecordBody]
    has_more: bool
    next: str | None
    object: Literal["list"] = "list"


def record_page(page: UsagePage) -> UsageRecordPage:
    """The public form of a page."""
    return UsageRecordPage(
        data=[_record_body(row) for row in page.records],
        has_more=page.next_cursor is not None,
        next=page.next_cursor,
    )


def _record_body(row: UsageRecordRow) -> UsageRecordBody:
    return msgspec.convert(row, UsageRecordBody, from_attributes=True)
