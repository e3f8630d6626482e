"""SQL of authentication. It runs before any tenant is known, hence in system sessions."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.tenants.models import ApiKey, ApiKeySecret, Operator, Project, Tenant


class Credential(NamedTuple):
    """What is known about one secret. `ends_at` is the first instant at which it is invalid."""

    tenant_id: UUID
    tenant_status: str
    tenant_time_zone: str
    project_id: UUID
    project_status: str
    api_key_id: UUID
    scopes: list[str]
    ends_at: datetime | None


async def find_credential(session: AsyncSession, secret_sha256: str) -> Credential | None:
    """The credential of a secret, also if it has ended or its tenant is suspended."""
    query = (
        select(ApiKeySecret, ApiKey, Project, Tenant)
        .join(ApiKey, ApiKey.id == ApiKeySecret.api_key_id)
        .join(Project, Project.id == ApiKey.project_id)
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .where(ApiKeySecret.secret_sha256 == secret_sha256)
    )
    row = (await session.execute(query)).one_or_none()
    if row is None:
        return None
    secret, key, project, tenant = row
    ends = [at for at in (key.expires_at, key.revoked_at, secret.expires_at) if at is not None]
    return Credential(
        tenant_id=tenant.id,
        tenant_status=tenant.status,
        tenant_time_zone=tenant.time_zone,
        project_id=project.id,
        project_status=project.status,
        api_key_id=key.id,
        scopes=key.scopes,
        ends_at=min(ends, default=None),
    )


async def find_operator(session: AsyncSession, email: str) -> Operator | None:
    """The operator with this e-mail address (lower case), whatever the status."""
    return (
        await session.execute(select(Operator).where(Operator.email == email))
    ).scalar_one_or_none()
