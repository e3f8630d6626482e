"""Sessions: one context is one transaction, run as a role that row-level security binds.

`tenant(scope)` sees one tenant's rows, whatever SQL is written; `system()` sees all and is for
the worker, authentication and operators. Both commit when the block ends and roll back when it
raises; nothing else in the platform commits. `read(scope)` asks one question as a tenant would,
without a session: for what every request asks.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from tenora_platform.auth.scope import TenantScope
from tenora_platform.errors import ServiceUnavailable

TENANT_ROLE: Final = "tenora_tenant"
SYSTEM_ROLE: Final = "tenora_system"

# Local settings end with the transaction, so a pooled connection never carries a tenant over.
_ENTER = text(
    "select set_config('role', :role, true), set_config('tenora.tenant_id', :tenant_id, true)"
)
# What the driver raises where SQLAlchemy, asked through a session, would raise a DBAPIError.
_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's last word came, and its goodbye not yet
    OSError,
)
# SQLSTATE classes that say "later": connection, rollback (deadlock), resources, intervention.
_OUTAGE_CLASSES = ("08", "40", "53", "57")


class Database:
    """The pool of connections of one process. Close it at the end; share it between tasks."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        max_overflow: int = 10,
        pool_timeout_s: float = 5.0,
        command_timeout_s: float = 30.0,
    ) -> None:
        self._engine: AsyncEngine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_timeout=pool_timeout_s,
            hide_parameters=True,  # a logged statement never shows values
            connect_args={
                "timeout": 5.0,
                "command_timeout": command_timeout_s,
                "server_settings": {"application_name": "tenora", "timezone": "UTC"},
            },
        )
        self._pool_size = pool_size
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    @asynccontextmanager
    async def tenant(self, scope: TenantScope) -> AsyncGenerator[AsyncSession, None]:
        """One transaction in which only the rows of `scope` exist.

        Raises ServiceUnavailable if the database cannot be reached.
        """
        async with self._transaction(TENANT_ROLE, str(scope.tenant_id)) as session:
            yield session

    @asynccontextmanager
    async def system(self) -> AsyncGenerator[AsyncSession, None]:
        """One transaction over all tenants. Never hand it to code that serves a tenant.

        Raises ServiceUnavailable if the database cannot be reached.
        """
        async with self._transaction(SYSTEM_ROLE, "") as session:
            yield session

    async def read(
        self, scope: TenantScope, query: str, *values: object
    ) -> Sequence[Sequence[Any]]:
        """The rows of one question that sees only the rows of `scope` and changes nothing.

        `query` is the driver's SQL, whose `$1` and so on are `values`. A session costs three times
        as much, and pays off from the second statement on.

        Raises ServiceUnavailable if the database cannot be reached.
        """
        try:
            async with self._engine.connect() as connection:
                return await _read(connection, scope, query, values, attempts=self._pool_size + 1)
        except (DBAPIError, PoolTimeoutError, *_DRIVER_ERRORS) as error:
            if _is_outage(error):
                raise ServiceUnavailable("The database cannot be reached. Retry soon.") from error
            raise

    async def ping(self) -> None:
        """Return if the database answers. Raises ServiceUnavailable otherwise."""
        async with self.system() as session:
            await session.execute(text("select 1"))

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._engine.dispose()

    @asynccontextmanager
    async def _transaction(self, role: str, tenant_id: str) -> AsyncGenerator[AsyncSession, None]:
        try:
            async with self._sessions() as session:
                await _enter(session, role, tenant_id)
                yield session
                await session.commit()
        except (DBAPIError, PoolTimeoutError, OSError) as error:
            if _is_outage(error):
                raise ServiceUnavailable("The database cannot be reached. Retry soon.") from error
            raise


async def _enter(session: AsyncSession, role: str, tenant_id: str) -> None:
    """Begin the transaction, on another connection where the pool's own turns out to be broken.

    Whatever fails here is the connection's fault, and nothing was done on it yet: most often it was
    lost since its last use.
    """
    values = {"role": role, "tenant_id": tenant_id}
    try:
        await session.execute(_ENTER, values)
    except DBAPIError:
        await session.invalidate()
        await session.execute(_ENTER, values)


async def _read(
    connection: AsyncConnection,
    scope: TenantScope,
    query: str,
    values: Sequence[object],
    *,
    attempts: int,
) -> Sequence[Sequence[Any]]:
    """`Database.read` on one connection, which is closed unless all went well."""
    # One message, which takes no parameters: what is written into it is a UUID and cannot be else.
    enter = (
        f"begin read only; select set_config('role', '{TENANT_ROLE}', true), "
        f"set_config('tenora.tenant_id', '{UUID(int=scope.tenant_id.int)}', true)"
    )
    try:
        driver = await _begin(connection, enter, attempts)
        rows: Sequence[Sequence[Any]] = await driver.fetch(query, *values)
        await driver.execute("commit")
    except BaseException:
        await connection.invalidate()
        raise
    return rows


async def _begin(connection: AsyncConnection, enter: str, attempts: int) -> Any:
    """The driver's own connection after `enter`, on another one where the pool's is broken.

    All that lie in the pool may be: the server was restarted since.
    """
    while True:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        try:
            await driver.execute(enter)
        except TimeoutError:
            raise  # a server that hangs is not waited for twice
        except _DRIVER_ERRORS as error:
            attempts -= 1
            if attempts == 0 or not _is_outage(error):
                raise
            await connection.invalidate()
        else:
            return driver


def refuses_a_value(error: DBAPIError) -> bool:
    """Whether the database refused what a row holds: a repetition will be refused as well."""
    state = getattr(error.orig, "sqlstate", None) or ""
    # The driver itself refuses what does not fit a column's type, with a kind of ValueError.
    unencodable = error.orig is not None and isinstance(error.orig.__cause__, ValueError)
    return unencodable or state.startswith(("22", "23"))


def _is_outage(error: Exception) -> bool:
    """Whether `error` means that the database is away, so that a retry may succeed."""
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        return error.connection_invalidated or state.startswith(_OUTAGE_CLASSES)
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_OUTAGE_CLASSES)
    return not isinstance(error, ValueError)  # the driver's word for a value of a wrong type
