"""Tables: tenants, projects, api_keys, api_key_secrets, operators.

An API key is a stable identity; its secrets come and go when it is rotated, so budgets and
history stay with the key. Composite foreign keys make a key of one tenant in another tenant's
project impossible.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db.base import Base, Id

_STATUS = "status in ('active', 'suspended')"


class Tenant(Base):
    """A paying customer. `time_zone` (IANA) decides which period a usage record belongs to."""

    __tablename__ = "tenants"
    __table_args__ = (UniqueConstraint("slug"), CheckConstraint(_STATUS, name="status_known"))

    id: Mapped[Id]
    slug: Mapped[str]
    name: Mapped[str]
    time_zone: Mapped[str]
    status: Mapped[str] = mapped_column(default="active")
    created_at: Mapped[datetime]


class Project(Base):
    """A tenant's subdivision: keys live in it and limits can be set on it."""

    __tablename__ = "projects"
    __table_args__ = (
        UniqueConstraint("tenant_id", "slug"),
        UniqueConstraint("tenant_id", "id"),
        CheckConstraint(_STATUS, name="status_known"),
    )

    id: Mapped[Id]
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    slug: Mapped[str]
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="active")
    created_at: Mapped[datetime]


class ApiKey(Base):
    """A credential's identity. `expires_at` and `revoked_at` end every secret of it."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"], ondelete="CASCADE"
        ),
        UniqueConstraint("tenant_id", "id"),
    )

    id: Mapped[Id]
    tenant_id: Mapped[UUID]
    project_id: Mapped[UUID] = mapped_column(index=True)
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class ApiKeySecret(Base):
    """One secret of a key: its SHA-256 only. `expires_at` is set when it was rotated out."""

    __tablename__ = "api_key_secrets"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "api_key_id"], ["api_keys.tenant_id", "api_keys.id"], ondelete="CASCADE"
        ),
        UniqueConstraint("secret_sha256"),
    )

    id: Mapped[Id]
    tenant_id: Mapped[UUID]
    api_key_id: Mapped[UUID] = mapped_column(index=True)
    secret_sha256: Mapped[str]
    redacted: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]


class Operator(Base):
    """A person who administers the installation; belongs to no tenant."""

    __tablename__ = "operators"
    __table_args__ = (
        UniqueConstraint("email"),
        CheckConstraint("email = lower(email)", name="email_lower"),
        CheckConstraint(_STATUS, name="status_known"),
    )

    id: Mapped[Id]
    email: Mapped[str]
    name: Mapped[str]
    password_hash: Mapped[str]
    status: Mapped[str] = mapped_column(default="active")
    created_at: Mapped[datetime]
