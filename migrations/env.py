"""Alembic's composition root: one connection, one transaction, one migration at a time.

The URL is the `sqlalchemy.url` option that `tenora_platform.db.migrate` sets, or else the
environment's TENORA_DATABASE_URL for calls of the `alembic` command itself.
"""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, pool, text
from sqlalchemy.ext.asyncio import create_async_engine

from tenora_platform.db.registry import metadata

# Any constant that no other program uses: two starting processes must not migrate at once.
MIGRATION_LOCK = 0x7E_40_AA_01


def database_url() -> str:
    """Where to migrate. Raises SystemExit, saying what to set, if nothing says where."""
    url = context.config.get_main_option("sqlalchemy.url") or os.environ.get("TENORA_DATABASE_URL")
    if not url:
        raise SystemExit("Set TENORA_DATABASE_URL to postgresql+asyncpg://USER@HOST/DATABASE.")
    return url


def run(connection: Connection) -> None:
    """Run what was asked for inside one transaction."""
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        connection.execute(text(f"select pg_advisory_xact_lock({MIGRATION_LOCK})"))
        context.run_migrations()


async def run_online() -> None:
    """Connect, migrate, disconnect."""
    engine = create_async_engine(database_url(), poolclass=pool.NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


if context.is_offline_mode():
    raise SystemExit("These migrations need a connection; leave out --sql.")
asyncio.run(run_online())
