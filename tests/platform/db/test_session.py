"""Sessions: one transaction each, as a role, and nothing carried over between them."""

import asyncio
from collections.abc import Callable, Coroutine
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.scope import mint
from tenora_platform.db.session import SYSTEM_ROLE, TENANT_ROLE, Database
from tenora_platform.errors import ServiceUnavailable
from tenora_platform.kit.ids import new_id

INSERT = text(
    "insert into tenants (id, slug, name, time_zone, status, created_at) "
    "values (:id, :slug, 'n', 'UTC', 'active', now())"
)
COUNT = text("select count(*) from tenants where id = :id")


async def role_and_tenant(session: AsyncSession) -> tuple[str, str]:
    row = await session.execute(text("select current_user, current_setting('tenora.tenant_id')"))
    role, tenant_id = row.one()
    return role, tenant_id


async def insert_then_fail(database: Database, tenant_id: UUID) -> None:
    async with database.system() as session:
        await session.execute(INSERT, {"id": tenant_id, "slug": tenant_id.hex})
        raise LookupError


async def lose_the_connection(database: Database) -> None:
    async with database.system() as session:
        pid = await session.scalar(text("select pg_backend_pid()"))
        await terminate(database, pid)
        await session.execute(text("select 1"))


async def terminate(database: Database, pid: int) -> None:
    async with database._sessions() as admin:  # as the cluster's superuser
        await admin.execute(text("select pg_terminate_backend(:pid)"), {"pid": pid})


async def test_each_kind_of_session_runs_as_its_role(database: Database) -> None:
    tenant_id = new_id()
    async with database.tenant(mint(tenant_id)) as session:
        assert await role_and_tenant(session) == (TENANT_ROLE, str(tenant_id))
    async with database.system() as session:
        assert await session.scalar(text("select current_user")) == SYSTEM_ROLE


async def test_a_pooled_connection_carries_nothing_into_the_next_session(
    database_url: str,
) -> None:
    pool = Database(database_url, pool_size=1, max_overflow=0)
    async with pool.tenant(mint(new_id())) as session:
        first = await session.scalar(text("select pg_backend_pid()"))
    async with pool._sessions() as bare:
        row = (
            await bare.execute(
                text("select pg_backend_pid(), current_user, current_setting('tenora.tenant_id')")
            )
        ).one()
    assert tuple(row) == (first, "postgres", "")
    await pool.close()


async def test_commits_at_the_end_and_rolls_back_on_an_error(database: Database) -> None:
    kept, undone = new_id(), new_id()
    async with database.system() as session:
        await session.execute(INSERT, {"id": kept, "slug": kept.hex})
    with pytest.raises(LookupError):
        await insert_then_fail(database, undone)
    async with database.system() as session:
        assert await session.scalar(COUNT, {"id": kept}) == 1
        assert await session.scalar(COUNT, {"id": undone}) == 0


async def test_a_violated_constraint_stays_what_it_is(database: Database) -> None:
    first = new_id()
    async with database.system() as session:
        await session.execute(INSERT, {"id": first, "slug": first.hex})
    with pytest.raises(IntegrityError):
        async with database.system() as session:
            await session.execute(INSERT, {"id": new_id(), "slug": first.hex})


async def test_a_fault_of_ours_is_not_an_outage(database: Database) -> None:
    with pytest.raises(ProgrammingError):
        async with database.system() as session:
            await session.execute(text("select * from no_such_table"))


async def test_an_unreachable_database_is_service_unavailable() -> None:
    absent = Database("postgresql+asyncpg://postgres@/x?host=/nonexistent-socket-folder")
    with pytest.raises(ServiceUnavailable):
        await absent.ping()
    await absent.close()


async def test_a_connection_cut_by_the_server_is_service_unavailable(
    database: Database,
) -> None:
    with pytest.raises(ServiceUnavailable):
        await lose_the_connection(database)
    await database.ping()


async def test_a_connection_that_was_cut_in_the_pool_is_replaced(database_url: str) -> None:
    pool = Database(database_url, pool_size=2, max_overflow=0)
    other = Database(database_url, pool_size=1, max_overflow=0)
    async with pool.system() as one, pool.system() as two:
        pids = [await session.scalar(text("select pg_backend_pid()")) for session in (one, two)]
    for pid in pids:
        await terminate(other, pid)
    tenant_id = new_id()
    async with pool.tenant(mint(tenant_id)) as session:
        assert await role_and_tenant(session) == (TENANT_ROLE, str(tenant_id))
    async with pool.system() as one, pool.system() as two:
        new = [await session.scalar(text("select pg_backend_pid()")) for session in (one, two)]
    assert not set(new) & set(pids)
    for database in (pool, other):
        await database.close()


async def wait_in_a_session(pool: Database) -> None:
    async with pool.tenant(mint(new_id())) as session:
        await session.execute(text("select pg_sleep(0.002)"))


async def wait_for_an_answer(pool: Database) -> None:
    await pool.read(mint(new_id()), "select pg_sleep(0.002)")


@pytest.mark.parametrize("work", [wait_in_a_session, wait_for_an_answer])
async def test_whoever_is_cancelled_leaves_a_connection_that_works_or_none(
    database_url: str, work: Callable[[Database], Coroutine[None, None, None]]
) -> None:
    pool = Database(database_url, pool_size=1, max_overflow=0)
    for step in range(60):
        task = asyncio.create_task(work(pool))
        await asyncio.sleep(step * 0.0001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.ping()
        assert await pool.read(mint(new_id()), "select 1")
    await pool.close()


async def test_a_full_pool_is_service_unavailable(database_url: str) -> None:
    pool = Database(database_url, pool_size=1, max_overflow=0, pool_timeout_s=0.05)
    async with pool.system():
        with pytest.raises(ServiceUnavailable):
            await pool.ping()
    await pool.close()


WHO = "select current_user::text, current_setting('tenora.tenant_id'), $1::text"


async def test_a_question_without_a_session_is_asked_as_the_tenant(database_url: str) -> None:
    pool = Database(database_url, pool_size=1, max_overflow=0)
    one, two = mint(new_id()), mint(new_id())
    for scope in (one, two, one):
        rows = await pool.read(scope, WHO, "x")
        assert [tuple(row) for row in rows] == [(TENANT_ROLE, str(scope.tenant_id), "x")]
    async with pool._sessions() as bare:
        left = await bare.execute(text("select current_user, current_setting('tenora.tenant_id')"))
        assert tuple(left.one()) == ("postgres", "")
    await pool.close()


async def test_a_question_sees_no_row_of_another_tenant(database: Database) -> None:
    one, two = new_id(), new_id()
    async with database.system() as session:
        for tenant_id in (one, two):
            await session.execute(INSERT, {"id": tenant_id, "slug": tenant_id.hex})
    rows = await database.read(mint(one), "select id from tenants where id = any($1)", [one, two])
    assert [row[0] for row in rows] == [one]


async def test_a_question_changes_nothing(database: Database) -> None:
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await database.read(mint(new_id()), "delete from tenants")
    assert await database.read(mint(new_id()), "select 1")


async def test_a_wrong_question_is_a_fault_of_ours_and_spoils_no_connection(
    database_url: str,
) -> None:
    pool = Database(database_url, pool_size=1, max_overflow=0)
    scope = mint(new_id())
    with pytest.raises(asyncpg.UndefinedTableError):
        await pool.read(scope, "select * from no_such_table")
    assert [tuple(row) for row in await pool.read(scope, "select 1")] == [(1,)]
    await pool.close()


async def test_a_value_of_a_wrong_type_is_a_fault_of_ours(database: Database) -> None:
    with pytest.raises(asyncpg.DataError):
        await database.read(mint(new_id()), "select $1::integer", "no number")


async def test_a_question_to_an_unreachable_database_is_service_unavailable() -> None:
    absent = Database("postgresql+asyncpg://postgres@/x?host=/nonexistent-socket-folder")
    with pytest.raises(ServiceUnavailable):
        await absent.read(mint(new_id()), "select 1")
    await absent.close()


async def test_a_question_is_asked_again_where_the_pool_held_a_broken_connection(
    database_url: str, database: Database
) -> None:
    pool = Database(database_url, pool_size=3, max_overflow=0)
    scope = mint(new_id())
    question = "select pg_backend_pid() from pg_sleep(0.05)"
    at_once = await asyncio.gather(*(pool.read(scope, question) for _ in range(3)))
    old = [rows[0][0] for rows in at_once]
    assert len(set(old)) == 3
    for pid in old:  # as a restart of the server does
        await terminate(database, pid)
    assert (await pool.read(scope, "select pg_backend_pid()"))[0][0] not in old
    await pool.close()


async def test_a_connection_that_is_cut_while_asked_is_service_unavailable(
    database_url: str, database: Database
) -> None:
    pool = Database(database_url, pool_size=1, max_overflow=0)
    scope = mint(new_id())
    pid = (await pool.read(scope, "select pg_backend_pid()"))[0][0]
    asking = asyncio.create_task(pool.read(scope, "select pg_sleep(30)"))
    await asyncio.sleep(0.1)
    await terminate(database, pid)
    with pytest.raises(ServiceUnavailable):
        await asking
    assert await pool.read(scope, "select 1")
    await pool.close()
