"""Migrations: up, down and up again; no drift from the models; safe to run together."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from tenora_platform.auth.scope import mint
from tenora_platform.db.migrate import downgrade, upgrade
from tenora_platform.db.registry import metadata
from tenora_platform.db.session import Database
from tenora_platform.kit.clock import SystemClock
from tenora_platform.tenants.provisioning import provision_tenant
from tenora_platform.tenants.service import TenantService
from tests.support.postgres import PostgresCluster

Result = TypeVar("Result")


def inspect_database(url: str, question: Callable[[Connection], Result]) -> Result:
    """What `question` finds out over a connection to `url`."""

    async def ask() -> Result:
        engine = create_async_engine(url)
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(question)
        finally:
            await engine.dispose()

    return asyncio.run(ask())


def migrate_in_processes(*urls: str) -> None:
    """Migrate all at once, each in a process of its own. Raises if one fails."""
    code = "import sys; from tenora_platform.db.migrate import upgrade; upgrade(sys.argv[1])"
    running = [subprocess.Popen([sys.executable, "-c", code, url]) for url in urls]
    assert [process.wait(timeout=60) for process in running] == [0] * len(urls)


def table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names()) - {"alembic_version"}


def leftovers(connection: Connection) -> list[Any]:
    """Functions and policies of ours that are still there."""
    query = text(
        "select proname::text from pg_proc where proname like 'tenora%' "
        "union all select policyname::text from pg_policies"
    )
    return list(connection.scalars(query))


def drift(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    return list(compare_metadata(context, metadata))


def check_constraints(connection: Connection) -> set[tuple[str, str]]:
    query = text(
        "select conrelid::regclass::text, conname::text from pg_constraint "
        "where contype = 'c' and connamespace = 'public'::regnamespace"
    )
    return {(row[0], row[1]) for row in connection.execute(query)}


def declared_check_constraints() -> set[tuple[str, str]]:
    return {
        (table.name, str(constraint.name))
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }


def test_models_and_migrations_describe_one_schema(database_url: str) -> None:
    assert inspect_database(database_url, drift) == []
    assert inspect_database(database_url, check_constraints) == declared_check_constraints()


def test_every_revision_goes_down_and_up_again(postgres: PostgresCluster) -> None:
    url = postgres.create_database()
    for _ in range(2):
        downgrade(url, "base")
        assert inspect_database(url, table_names) == set()
        assert inspect_database(url, leftovers) == []
        upgrade(url)
        assert inspect_database(url, table_names) == set(metadata.tables)
    assert inspect_database(url, drift) == []


def test_one_step_down_keeps_rows_readable_for_the_owner_only(postgres: PostgresCluster) -> None:
    url = postgres.create_database()
    downgrade(url, "-1")
    with pytest.raises(DBAPIError, match="permission denied"):
        inspect_database(url, _read_as_tenant)
    upgrade(url)
    assert inspect_database(url, _read_as_tenant) == 0


def test_two_processes_may_migrate_at_once(postgres: PostgresCluster) -> None:
    url = postgres.create_database(migrated=False)
    migrate_in_processes(url, url)
    assert inspect_database(url, drift) == []


def test_two_databases_of_a_cluster_may_migrate_at_once(postgres: PostgresCluster) -> None:
    urls = [postgres.create_database(migrated=False) for _ in range(2)]
    migrate_in_processes(*urls)
    for url in urls:
        assert inspect_database(url, table_names) == set(metadata.tables)


def test_a_plain_login_can_migrate_and_serve(postgres: PostgresCluster) -> None:
    """As in a managed database: no superuser; the two roles were granted by whoever is."""
    postgres.execute("create role tenora_login login")
    postgres.execute("create database tenora_plain owner tenora_login template template0")
    postgres.execute("grant tenora_tenant, tenora_system to tenora_login with inherit false")
    url = postgres.url("tenora_plain", user="tenora_login")
    upgrade(url)
    assert inspect_database(url, drift) == []
    assert inspect_database(url, _count_tenants_without_a_role) == 0
    assert asyncio.run(_provision_and_delete(url)) == (1, 0)


def test_migrating_twice_changes_nothing(database_url: str) -> None:
    upgrade(database_url)
    assert inspect_database(database_url, drift) == []


def _read_as_tenant(connection: Connection) -> int:
    connection.execute(text("set local role tenora_tenant"))
    return int(connection.execute(text("select count(*) from tenants")).scalar_one())


def _count_tenants_without_a_role(connection: Connection) -> int:
    """Even the tables' owner sees no rows until it switches to a role."""
    connection.execute(text("set local role tenora_system"))
    connection.execute(
        text(
            "insert into tenants (id, slug, name, time_zone, status, created_at) "
            "values (gen_random_uuid(), 'owner', 'n', 'UTC', 'active', now())"
        )
    )
    connection.execute(text("reset role"))
    return int(connection.execute(text("select count(*) from tenants")).scalar_one())


async def _provision_and_delete(url: str) -> tuple[int, int]:
    """How many keys a new tenant sees, and how many are left once it is deleted."""
    database = Database(url)
    count = text("select count(*) from api_keys")
    try:
        made = await provision_tenant(database, SystemClock(), slug="acme", name="Acme")
        async with database.tenant(mint(made.tenant.id)) as session:
            seen = int((await session.execute(count)).scalar_one())
        async with database.system() as session:
            await TenantService(session, SystemClock()).delete_tenant(made.tenant.id)
            left = int((await session.execute(count)).scalar_one())
    finally:
        await database.close()
    return seen, left
