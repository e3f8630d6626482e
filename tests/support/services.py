"""Fixtures of real services, started once per test process and shared by all its tests.

`database_url` is one migrated database; tests share it and keep apart by making tenants of
their own. `fresh_database_url` is a database of the test's own, for tests that count all rows.
"""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import PostgresCluster, running_postgres

if TYPE_CHECKING:  # every test run loads this module; only some need a database
    from tenora_platform.db.session import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    """A private PostgreSQL server."""
    with running_postgres() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def database_url(postgres: PostgresCluster) -> str:
    """One migrated database for the whole session."""
    return postgres.create_database()


@pytest.fixture
def fresh_database_url(postgres: PostgresCluster) -> str:
    """A migrated database that no other test has touched."""
    return postgres.create_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator["Database"]:
    """A pool on the shared database, bound to the test's event loop."""
    from tenora_platform.db.session import Database

    pool = Database(database_url, pool_size=4)
    yield pool
    await pool.close()


@pytest.fixture
async def fresh_database(fresh_database_url: str) -> AsyncIterator["Database"]:
    """A pool on a database of the test's own."""
    from tenora_platform.db.session import Database

    pool = Database(fresh_database_url, pool_size=4)
    yield pool
    await pool.close()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A private Redis on a Unix socket. Tests keep apart by tenant."""
    from tests.support.redis_server import running_redis

    with running_redis() as server:
        yield server.url
