"""SQL of authentication. It runs before any tenant is known, hence in system sessions."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, func, select
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


# Asked for every key every few seconds: built once, and of columns, because an entity costs more.
_CREDENTIAL_OF: Final = (
    select(
        Tenant.id,
        Tenant.status,
        Tenant.time_zone,
        Project.id,
        Project.status,
        ApiKey.id,
        ApiKey.scopes,
        func.least(ApiKey.expires_at, ApiKey.revoked_at, ApiKeySecret.expires_at),
    )
    .select_from(ApiKeySecret)
    .join(ApiKey, ApiKey.id == ApiKeySecret.api_key_id)
    .join(Project, Project.id == ApiKey.project_id)
    .join(Tenant, Tenant.id == ApiKey.tenant_id)
    .where(ApiKeySecret.secret_sha256 == bindparam("secret_sha256"))
)


async def find_credential(session: AsyncSession, secret_sha256: str) -> Credential | None:
    """The credential of a secret, also if it has ended or its tenant is suspended."""
    found = await session.execute(_CREDENTIAL_OF, {"secret_sha256": secret_sha256})
    row = found.one_or_none()
    return None if row is None else Credential(*row)


async def find_operator(session: AsyncSession, email: str) -> Operator | None:
    """The operator with this e-mail address (lower case), whatever the status."""
    return (
        await session.execute(select(Operator).where(Operator.email == email))
    ).scalar_one_or_none()
