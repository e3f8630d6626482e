"""One call for a tenant that can work at once: tenant, first project, first API key, limits.

Used by the demo and by whoever scripts an installation.
"""

from collections.abc import Collection
from dataclasses import dataclass

from tenora_platform.db.session import Database
from tenora_platform.kit.clock import Clock
from tenora_platform.quotas.limit_service import LimitService
from tenora_platform.quotas.limits import BudgetPeriod, LimitKind
from tenora_platform.tenants.api_keys import DEFAULT_SCOPES, ApiKeyService
from tenora_platform.tenants.models import ApiKey, Project, Tenant
from tenora_platform.tenants.service import TenantService


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """A limit on the new tenant as a whole."""

    kind: LimitKind
    value: int
    period: BudgetPeriod | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class ProvisionedTenant:
    """What was made. `secret` is shown here and never again."""

    tenant: Tenant
    project: Project
    api_key: ApiKey
    secret: str


async def provision_tenant(
    database: Database,
    clock: Clock,
    *,
    slug: str,
    name: str,
    time_zone: str = "UTC",
    limits: Collection[TenantLimit] = (),
    scopes: Collection[str] = DEFAULT_SCOPES,
) -> ProvisionedTenant:
    """A tenant with a project called `default` and a key called `first`, all or nothing.

    Raises InvalidInput for a bad value, and Conflict if the slug is taken.
    """
    async with database.system() as session:
        tenants = TenantService(session, clock)
        tenant = await tenants.create_tenant(slug=slug, name=name, time_zone=time_zone)
        project = await tenants.create_project(tenant.id, slug="default", name="Default")
        key, secret = await ApiKeyService(session, clock).issue_api_key(
            tenant.id, project.id, name="first", scopes=scopes
        )
        for limit in limits:
            await LimitService(session, clock).set_limit(
                tenant.id,
                scope_kind="tenant",
                scope_id=tenant.id,
                kind=limit.kind,
                value=limit.value,
                period=limit.period,
                burst=limit.burst,
            )
    return ProvisionedTenant(tenant=tenant, project=project, api_key=key, secret=secret)
