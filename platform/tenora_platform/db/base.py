"""The declarative base of all models: types, constraint names and column shorthands.

A table with a `tenant_id` column is tenant-owned: row-level security is enabled on it by the
migration that creates it, and a test walks the metadata to prove that.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, MetaData, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

from tenora_platform.kit.ids import new_id


class Base(DeclarativeBase):
    """Base of every model. `int` is a 64-bit column and `datetime` is timezone-aware."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        int: BigInteger,
        str: Text,
        UUID: Uuid,
    }


Id = Annotated[UUID, mapped_column(primary_key=True, default=new_id)]
"""A primary key that the application makes: UUIDv7."""
