from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db.session import Database
from tenora_platform.errors import Conflict, InvalidInput, NotFound
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.limit_service import LimitService
from tenora_platform.tenants.models import Tenant
from tenora_platform.tenants.service import TenantService
from tests.support.clock import FakeClock


@pytest.fixture
async def session(database: Database) -> AsyncIterator[AsyncSession]:
    async with database.system() as session:
        yield session


@pytest.fixture
def service(session: AsyncSession) -> TenantService:
    return TenantService(session, FakeClock())


@pytest.fixture
def limits(session: AsyncSession) -> LimitService:
    return LimitService(session, FakeClock())


async def new_tenant(service: TenantService) -> Tenant:
    return await service.create_tenant(slug=f"t-{new_id().hex}", name="Acme")


async def test_a_tenant_is_found_by_slug_and_in_the_list(service: TenantService) -> None:
    tenant = await new_tenant(service)
    assert await service.find_tenant(tenant.slug) is tenant
    assert tenant in await service.list_tenants()
    assert await service.find_tenant("nobody") is None


@pytest.mark.parametrize(
    ("slug", "name", "time_zone", "param"),
    [
        ("", "n", "UTC", "slug"),
        ("Upper", "n", "UTC", "slug"),
        ("-edge", "n", "UTC", "slug"),
        ("a" * 64, "n", "UTC", "slug"),
        ("nul\0", "n", "UTC", "slug"),
        ("ok", " ", "UTC", "name"),
        ("ok", "a\0b", "UTC", "name"),
        ("ok", "n" * 201, "UTC", "name"),
        ("ok", "n", "Mars/Olympus", "time_zone"),
    ],
)
async def test_bad_input_is_refused_by_field(
    service: TenantService, slug: str, name: str, time_zone: str, param: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await service.create_tenant(slug=slug, name=name, time_zone=time_zone)
    assert refusal.value.param == param


async def test_a_taken_slug_conflicts_and_the_transaction_goes_on(service: TenantService) -> None:
    tenant = await new_tenant(service)
    with pytest.raises(Conflict):
        await service.create_tenant(slug=tenant.slug, name="Other")
    await service.create_project(tenant.id, slug="web", name="Web")
    with pytest.raises(Conflict):
        await service.create_project(tenant.id, slug="web", name="Web")
    assert [project.slug for project in await service.list_projects(tenant.id)] == ["web"]


async def test_things_of_another_tenant_are_not_found(
    service: TenantService, limits: LimitService
) -> None:
    ours, theirs = await new_tenant(service), await new_tenant(service)
    project = await service.create_project(theirs.id, slug="web", name="Web")
    with pytest.raises(NotFound):
        await service.set_project_status(ours.id, project.id, "suspended")
    with pytest.raises(NotFound):
        await limits.set_limit(
            ours.id, scope_kind="project", scope_id=project.id, kind="concurrency", value=1
        )
    with pytest.raises(NotFound):
        await limits.set_limit(
            ours.id, scope_kind="tenant", scope_id=theirs.id, kind="concurrency", value=1
        )
    with pytest.raises(NotFound):
        await service.create_project(new_id(), slug="web", name="Web")


async def test_setting_a_limit_again_replaces_it_and_keeps_its_id(
    service: TenantService, limits: LimitService
) -> None:
    tenant = await new_tenant(service)
    first = await limits.set_limit(
        tenant.id, scope_kind="tenant", scope_id=tenant.id, kind="concurrency", value=1
    )
    second = await limits.set_limit(
        tenant.id, scope_kind="tenant", scope_id=tenant.id, kind="concurrency", value=2
    )
    assert (second.id, second.value) == (first.id, 2)
    assert await limits.list_limits(tenant.id) == [second]
    with pytest.raises(NotFound):
        await limits.clear_limit(new_id(), UUID(second.id))
    await limits.clear_limit(tenant.id, UUID(second.id))
    assert list(await limits.list_limits(tenant.id)) == []


async def test_day_and_month_budgets_stand_beside_each_other(
    service: TenantService, limits: LimitService
) -> None:
    tenant = await new_tenant(service)
    for period, value in (("day", 10), ("month", 100)):
        await limits.set_limit(
            tenant.id,
            scope_kind="tenant",
            scope_id=tenant.id,
            kind="budget",
            value=value,
            period="day" if period == "day" else "month",
        )
    stored = await limits.list_limits(tenant.id)
    assert {(limit.period, limit.value) for limit in stored} == {("day", 10), ("month", 100)}


@pytest.mark.parametrize("value", [-7, 2**63, 10**308])
async def test_an_impossible_value_is_refused(
    service: TenantService, limits: LimitService, value: int
) -> None:
    tenant = await new_tenant(service)
    with pytest.raises(InvalidInput):
        await limits.set_limit(
            tenant.id,
            scope_kind="tenant",
            scope_id=tenant.id,
            kind="budget",
            period="day",
            value=value,
        )


async def test_deleting_a_tenant_removes_what_belongs_to_it(
    service: TenantService, limits: LimitService
) -> None:
    tenant = await new_tenant(service)
    await service.create_project(tenant.id, slug="web", name="Web")
    await limits.set_limit(
        tenant.id, scope_kind="tenant", scope_id=tenant.id, kind="concurrency", value=1
    )
    await service.delete_tenant(tenant.id)
    assert list(await service.list_projects(tenant.id)) == []
    assert list(await limits.list_limits(tenant.id)) == []
    with pytest.raises(NotFound):
        await service.get_tenant(tenant.id)
