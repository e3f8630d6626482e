"""Row-level security on every tenant-owned table, also against hand-written SQL.

The privileges of `tenora_tenant` are widened to everything inside a transaction that is rolled
back, so that what refuses here is the row policy and not a missing grant.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.scope import mint
from tenora_platform.db.registry import metadata, tenant_owned_tables
from tenora_platform.db.session import TENANT_ROLE, Database
from tenora_platform.kit.ids import new_id
from tests.support.tenant_rows import insert_one_row_everywhere

TABLES = [*tenant_owned_tables(), "tenants"]
READ_ONLY = {
    "budget_spends",
    "ledger_entries",
    "ledger_heads",
    "quota_limits",
    "tenants",
    "usage_records",
}


@dataclass(frozen=True)
class TwoTenants:
    """Both have a row in every tenant-owned table."""

    ours: UUID
    theirs: UUID


@pytest.fixture
async def tenants(database: Database) -> TwoTenants:
    pair = TwoTenants(new_id(), new_id())
    async with database.system() as session:
        for tenant_id in (pair.ours, pair.theirs):
            await insert_one_row_everywhere(session, tenant_id)
    return pair


@asynccontextmanager
async def as_tenant_with_every_privilege(
    database: Database, tenant_id: UUID
) -> AsyncIterator[AsyncSession]:
    """A tenant's session whose grants no longer refuse anything; undone at the end."""
    async with database._sessions() as session:
        await session.execute(text(f"grant all on all tables in schema public to {TENANT_ROLE}"))
        await session.execute(
            text(
                "select set_config('role', :role, true), set_config('tenora.tenant_id', :id, true)"
            ),
            {"role": TENANT_ROLE, "id": str(tenant_id)},
        )
        yield session
        await session.rollback()


def owner_column(table: str) -> str:
    return "id" if table == "tenants" else "tenant_id"


def test_the_walk_finds_the_tables() -> None:
    assert {"usage_records", "ledger_entries", "adapters", "api_key_secrets"} <= set(TABLES)
    assert len(TABLES) >= 11


async def test_security_is_enabled_and_forced(database: Database) -> None:
    query = text(
        "select relname from pg_class "
        "where relkind = 'r' and relrowsecurity and relforcerowsecurity"
    )
    async with database.system() as session:
        assert set(await session.scalars(query)) == set(TABLES)


async def test_another_tenants_rows_do_not_exist(
    database: Database, tenants: TwoTenants, subtests: pytest.Subtests
) -> None:
    async with as_tenant_with_every_privilege(database, tenants.ours) as session:
        for table in TABLES:
            with subtests.test(table):
                column = owner_column(table)
                owners = await session.scalars(text(f"select {column} from {table}"))
                assert list(owners) == [tenants.ours]
                named = text(f"select count(*) from {table} where {column} = :id")
                assert await session.scalar(named, {"id": tenants.theirs}) == 0


@pytest.mark.parametrize("verb", ["update {0} set {1} = {1}", "delete from {0}"])
async def test_another_tenants_rows_cannot_be_changed(
    database: Database, tenants: TwoTenants, verb: str, subtests: pytest.Subtests
) -> None:
    async with as_tenant_with_every_privilege(database, tenants.ours) as session:
        for table in TABLES:
            with subtests.test(table):
                column = owner_column(table)
                statement = f"{verb.format(table, column)} where {column} = :id returning 1"
                changed = await session.execute(text(statement), {"id": tenants.theirs})
                assert changed.all() == []


async def test_a_row_cannot_be_written_for_another_tenant(
    database: Database, tenants: TwoTenants, subtests: pytest.Subtests
) -> None:
    async with as_tenant_with_every_privilege(database, tenants.ours) as session:
        for table in TABLES:
            with subtests.test(table), pytest.raises(ProgrammingError, match="row-level security"):
                async with session.begin_nested():
                    await insert_one_row_everywhere(session, tenants.theirs, only=table)


async def test_a_row_cannot_be_given_to_another_tenant(
    database: Database, tenants: TwoTenants, subtests: pytest.Subtests
) -> None:
    async with as_tenant_with_every_privilege(database, tenants.ours) as session:
        for table in sorted(set(TABLES) - {"ledger_entries"}):  # never updated at all
            statement = text(f"update {table} set {owner_column(table)} = :id")
            with subtests.test(table), pytest.raises(ProgrammingError, match="row-level security"):
                async with session.begin_nested():
                    await session.execute(statement, {"id": tenants.theirs})


async def test_without_a_tenant_there_are_no_rows(
    database: Database, tenants: TwoTenants, subtests: pytest.Subtests
) -> None:
    async with database._sessions() as session:
        await session.execute(text(f"set local role {TENANT_ROLE}"))
        for table in TABLES:
            with subtests.test(table):
                assert await session.scalar(text(f"select count(*) from {table}")) == 0


@pytest.mark.parametrize("verb", ["insert into {} default values", "delete from {}", "truncate {}"])
async def test_a_tenant_only_reads_the_books_and_its_limits(
    database: Database, tenants: TwoTenants, verb: str, subtests: pytest.Subtests
) -> None:
    async with database.tenant(mint(tenants.ours)) as session:
        for table in sorted(READ_ONLY):
            with subtests.test(table), pytest.raises(ProgrammingError, match="permission denied"):
                async with session.begin_nested():
                    await session.execute(text(verb.format(table)))


async def test_a_tenant_cannot_see_operators_or_rejections(
    database: Database, tenants: TwoTenants
) -> None:
    for table in ("operators", "usage_rejections"):
        with pytest.raises(ProgrammingError, match="permission denied"):
            async with database.tenant(mint(tenants.ours)) as session:
                await session.execute(text(f"select * from {table}"))


async def test_every_table_is_tenant_owned_or_named_as_shared(database: Database) -> None:
    shared = {"operators", "price_versions", "usage_rejections"}
    assert set(metadata.tables) == set(TABLES) | shared
