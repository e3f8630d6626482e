import pytest

from tenora_platform.db.session import Database
from tenora_platform.errors import InvalidInput
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.limit_service import LimitService
from tenora_platform.tenants.provisioning import TenantLimit, provision_tenant
from tenora_platform.tenants.service import TenantService
from tests.support.clock import FakeClock


async def test_a_provisioned_tenant_is_complete(database: Database) -> None:
    clock = FakeClock()
    limits = [TenantLimit("budget", 10**9, period="month"), TenantLimit("concurrency", 4)]
    made = await provision_tenant(
        database, clock, slug=f"t-{new_id().hex}", name="Acme", limits=limits
    )
    assert made.project.tenant_id == made.api_key.tenant_id == made.tenant.id
    async with database.system() as session:
        stored = await LimitService(session, clock).list_limits(made.tenant.id)
    assert {(limit.kind, limit.value, limit.period) for limit in stored} == {
        ("budget", 10**9, "month"),
        ("concurrency", 4, None),
    }


async def test_one_bad_limit_leaves_nothing_behind(database: Database) -> None:
    clock, slug = FakeClock(), f"t-{new_id().hex}"
    with pytest.raises(InvalidInput):
        await provision_tenant(
            database, clock, slug=slug, name="Acme", limits=[TenantLimit("concurrency", -1)]
        )
    async with database.system() as session:
        assert await TenantService(session, clock).find_tenant(slug) is None
