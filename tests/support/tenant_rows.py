"""One row of a tenant in each tenant-owned table, made from the metadata's own description."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db.registry import metadata, tenant_owned_tables
from tenora_platform.kit.ids import new_id

# What constraints ask for; every other column gets any value of its type.
_CHOSEN: dict[str, dict[str, Any]] = {
    "tenants": {"status": "active"},
    "projects": {"status": "active"},
    "quota_limits": {"scope_kind": "project", "kind": "concurrency"},
    "adapter_revisions": {"status": "inspecting"},
    "budget_spends": {"scope_kind": "project"},
    "usage_records": {"outcome": "stop"},
    "ledger_entries": {"debit_account": "a", "credit_account": "b"},
}


async def insert_one_row_everywhere(
    session: AsyncSession, tenant_id: UUID, *, only: str | None = None
) -> None:
    """Insert the tenant and a row of it in every tenant-owned table, or `only` in one of them."""
    ids: dict[str, UUID] = {"tenants": tenant_id}
    for name in ("tenants", *tenant_owned_tables()):
        row = _row(name, tenant_id, ids)
        if only in (None, name):
            await session.execute(insert(metadata.tables[name]).values(row))


def _row(name: str, tenant_id: UUID, ids: dict[str, UUID]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in metadata.tables[name].columns:
        if column.nullable:
            continue
        if column.name == "tenant_id":
            row["tenant_id"] = tenant_id
        elif column.name == "id":
            row["id"] = ids.setdefault(name, new_id())
        elif column.foreign_keys:
            row[column.name] = ids[next(iter(column.foreign_keys)).column.table.name]
        else:
            row[column.name] = _any_value(column)
    return {**row, **_CHOSEN.get(name, {})}


def _any_value(column: Column[Any]) -> Any:
    kind = column.type.python_type
    if kind is UUID:
        return new_id()
    if kind is str:
        return new_id().hex
    if kind is datetime:
        return datetime.now(UTC)
    return {int: 1, bool: False, object: {}, list: ["inference"]}[kind]
