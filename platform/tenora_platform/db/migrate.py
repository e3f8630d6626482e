"""Brings a database to a revision of the schema. Used by `tenora migrate`, `tenora up`, tests."""

from pathlib import Path

from alembic import command
from alembic.config import Config

MIGRATIONS = Path(__file__).resolve().parents[3] / "migrations"


def alembic_config(url: str) -> Config:
    """Alembic's settings for the database at `url` (postgresql+asyncpg://...).

    Raises FileNotFoundError if the folder of migrations is missing beside the sources.
    """
    if not (MIGRATIONS / "env.py").exists():
        raise FileNotFoundError(
            f"no migrations in {MIGRATIONS}; run from a checkout of the project"
        )
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    # Percent signs of an encoded password or socket path are not interpolation marks.
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up to `revision`; does nothing if it is there already.

    Blocking, and runs an event loop of its own: call it from a thread where one is running.
    Safe to call from several processes at once.
    """
    command.upgrade(alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate down to `revision`; `base` removes every table."""
    command.downgrade(alembic_config(url), revision)
