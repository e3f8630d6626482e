"""What operators do with tenants and projects: create, suspend, delete."""

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeVar
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import InvalidInput, NotFound
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id
from tenora_platform.kit.periods import zone
from tenora_platform.quotas.limits import ScopeKind
from tenora_platform.tenants.models import Project, Tenant
from tenora_platform.tenants.repository import TenantRepository

Status = Literal["active", "suspended"]
MAX_NAME_LENGTH: Final = 200

_Row = TypeVar("_Row")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class TenantService:
    """Business verbs on tenants. Works in the caller's system session and never commits."""

    def __init__(self, session: AsyncSession, clock: Clock) -> None:
        self._session = session
        self._repository = TenantRepository(session)
        self._clock = clock

    async def create_tenant(self, *, slug: str, name: str, time_zone: str = "UTC") -> Tenant:
        """A new tenant whose billing periods follow `time_zone` (IANA).

        Raises InvalidInput for a bad slug, name or zone, and Conflict if the slug is taken.
        """
        try:
            zone(time_zone)
        except ValueError as error:
            raise InvalidInput(f"{error}.", param="time_zone") from error
        tenant = Tenant(
            id=new_id(),
            slug=_checked_slug(slug),
            name=checked_name(name),
            time_zone=time_zone,
            status="active",
            created_at=self._clock.now(),
        )
        await self._repository.add_unique(tenant, f"The tenant '{slug}' exists already.")
        return tenant

    async def get_tenant(self, tenant_id: UUID) -> Tenant:
        """The tenant. Raises NotFound."""
        return found(await self._repository.get_tenant(tenant_id), "tenant")

    async def find_tenant(self, slug: str) -> Tenant | None:
        """The tenant with this slug, if there is one."""
        return await self._repository.get_tenant_by_slug(slug)

    async def list_tenants(self) -> Sequence[Tenant]:
        """All tenants by slug."""
        return await self._repository.list_tenants()

    async def set_tenant_status(self, tenant_id: UUID, status: Status) -> Tenant:
        """Suspend or reactivate; keys follow within the authenticator's TTL.

        Requests that run are not cut off, and are billed. Raises NotFound.
        """
        tenant = await self.get_tenant(tenant_id)
        tenant.status = status
        await self._session.flush()
        return tenant

    async def delete_tenant(self, tenant_id: UUID) -> None:
        """Remove the tenant with its projects, keys, limits and adapters. Raises NotFound.

        Usage records and the ledger stay, and requests that still run are settled.
        """
        await self._repository.remove(await self.get_tenant(tenant_id))

    async def create_project(self, tenant_id: UUID, *, slug: str, name: str) -> Project:
        """A new project. Raises NotFound, InvalidInput, or Conflict if the slug is taken."""
        await self.get_tenant(tenant_id)
        project = Project(
            id=new_id(),
            tenant_id=tenant_id,
            slug=_checked_slug(slug),
            name=checked_name(name),
            status="active",
            created_at=self._clock.now(),
        )
        await self._repository.add_unique(project, f"The project '{slug}' exists already.")
        return project

    async def list_projects(self, tenant_id: UUID) -> Sequence[Project]:
        """The tenant's projects by slug."""
        return await self._repository.list_projects(tenant_id)

    async def set_project_status(
        self, tenant_id: UUID, project_id: UUID, status: Status
    ) -> Project:
        """Suspend or reactivate one project. Raises NotFound."""
        project = found(await self._repository.get_project(tenant_id, project_id), "project")
        project.status = status
        await self._session.flush()
        return project

    async def require_scope(self, tenant_id: UUID, kind: ScopeKind, scope_id: UUID) -> None:
        """Return if the scope is the tenant itself or one of its projects or keys.

        Raises NotFound otherwise.
        """
        await self.get_tenant(tenant_id)
        if kind == "project":
            found(await self._repository.get_project(tenant_id, scope_id), "project")
        elif kind == "api_key":
            found(await self._repository.get_api_key(tenant_id, scope_id), "API key")
        elif scope_id != tenant_id:
            raise NotFound("There is no such tenant.")


def found(row: _Row | None, what: str) -> _Row:
    """`row`. Raises NotFound, naming `what` was sought, if there is none."""
    if row is None:
        raise NotFound(f"There is no such {what}.")
    return row


def checked_name(name: str) -> str:
    """`name` without surrounding space. Raises InvalidInput if it is empty, long or unprintable."""
    stripped = name.strip()
    if not (0 < len(stripped) <= MAX_NAME_LENGTH and stripped.isprintable()):
        raise InvalidInput(f"A name has 1 to {MAX_NAME_LENGTH} printable characters.", param="name")
    return stripped


def _checked_slug(slug: str) -> str:
    if _SLUG.fullmatch(slug) is None:
        raise InvalidInput(
            "A slug has 1 to 63 lower-case letters, digits and inner hyphens.", param="slug"
        )
    return slug
