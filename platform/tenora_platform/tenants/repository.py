"""SQL of tenants, projects, keys and operators. Runs in system sessions, for operators.

Every statement on a tenant-owned table names the tenant: an id of another tenant finds nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db.base import Base
from tenora_platform.errors import Conflict
from tenora_platform.tenants.models import ApiKey, ApiKeySecret, Project, Tenant

_UNIQUE_VIOLATION = "23505"


class TenantRepository:
    """Reads and writes within the caller's transaction."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: Base) -> None:
        """Insert `row`."""
        self._session.add(row)
        await self._session.flush()

    async def add_unique(self, row: Base, conflict: str) -> None:
        """Insert `row`. Raises Conflict with the sentence `conflict` if a unique key is taken."""
        try:
            async with self._session.begin_nested():
                await self.add(row)
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) == _UNIQUE_VIOLATION:
                raise Conflict(conflict) from error
            raise

    async def remove(self, row: Base) -> None:
        """Delete `row` and what belongs to it."""
        await self._session.delete(row)
        await self._session.flush()

    async def get_tenant(self, tenant_id: UUID) -> Tenant | None:
        """The tenant, or None."""
        return await self._session.get(Tenant, tenant_id)

    async def get_tenant_by_slug(self, slug: str) -> Tenant | None:
        """The tenant with this slug, or None."""
        return await self._session.scalar(select(Tenant).where(Tenant.slug == slug))

    async def list_tenants(self) -> Sequence[Tenant]:
        """All tenants by slug."""
        return (await self._session.scalars(select(Tenant).order_by(Tenant.slug))).all()

    async def get_project(self, tenant_id: UUID, project_id: UUID) -> Project | None:
        """The tenant's project, or None."""
        return await self._session.scalar(
            select(Project).where(Project.tenant_id == tenant_id, Project.id == project_id)
        )

    async def list_projects(self, tenant_id: UUID) -> Sequence[Project]:
        """The tenant's projects by slug."""
        query = select(Project).where(Project.tenant_id == tenant_id).order_by(Project.slug)
        return (await self._session.scalars(query)).all()

    async def get_api_key(
        self, tenant_id: UUID, api_key_id: UUID, *, for_update: bool = False
    ) -> ApiKey | None:
        """The tenant's key, or None; locked until the transaction ends if `for_update`."""
        query = select(ApiKey).where(ApiKey.tenant_id == tenant_id, ApiKey.id == api_key_id)
        return await self._session.scalar(query.with_for_update() if for_update else query)

    async def list_api_keys(self, tenant_id: UUID) -> Sequence[ApiKey]:
        """The tenant's keys, newest first, revoked ones included."""
        query = select(ApiKey).where(ApiKey.tenant_id == tenant_id)
        return (
            await self._session.scalars(query.order_by(ApiKey.created_at.desc(), ApiKey.id))
        ).all()

    async def list_secrets(self, tenant_id: UUID, api_key_id: UUID) -> Sequence[ApiKeySecret]:
        """The key's secrets, newest first, ended ones included."""
        query = select(ApiKeySecret).where(
            ApiKeySecret.tenant_id == tenant_id, ApiKeySecret.api_key_id == api_key_id
        )
        return (
            await self._session.scalars(
                query.order_by(ApiKeySecret.created_at.desc(), ApiKeySecret.id)
            )
        ).all()

    async def end_secrets(self, tenant_id: UUID, api_key_id: UUID, *, at: datetime) -> None:
        """Let every secret of the key end at `at`, or earlier where it does already."""
        await self._session.execute(
            update(ApiKeySecret)
            .where(
                ApiKeySecret.tenant_id == tenant_id,
                ApiKeySecret.api_key_id == api_key_id,
                (ApiKeySecret.expires_at.is_(None)) | (ApiKeySecret.expires_at > at),
            )
            .values(expires_at=at)
        )
