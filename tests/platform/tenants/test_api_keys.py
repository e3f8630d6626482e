"""Issuing and rotating keys (cases E19): the id is stable, secrets are shown once."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.api_keys import redacted
from tenora_platform.db.session import Database
from tenora_platform.errors import Conflict, InvalidInput, NotFound
from tenora_platform.kit.ids import new_id
from tenora_platform.tenants.api_keys import ApiKeyService
from tenora_platform.tenants.models import ApiKeySecret, Project
from tenora_platform.tenants.service import TenantService
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def session(database: Database) -> AsyncIterator[AsyncSession]:
    async with database.system() as session:
        yield session


@pytest.fixture
async def project(session: AsyncSession, clock: FakeClock) -> Project:
    tenants = TenantService(session, clock)
    tenant = await tenants.create_tenant(slug=f"t-{new_id().hex}", name="Acme")
    return await tenants.create_project(tenant.id, slug="web", name="Web")


@pytest.fixture
def keys(session: AsyncSession, clock: FakeClock) -> ApiKeyService:
    return ApiKeyService(session, clock)


async def test_an_issued_key_stores_no_secret(keys: ApiKeyService, project: Project) -> None:
    key, secret = await keys.issue_api_key(project.tenant_id, project.id, name="ci")
    (stored,) = await keys.list_secrets(project.tenant_id, key.id)
    assert stored.redacted == redacted(secret)
    values = [str(getattr(stored, column.name)) for column in ApiKeySecret.__table__.columns]
    assert secret not in " ".join(values)
    assert list(await keys.list_api_keys(project.tenant_id)) == [key]


async def test_a_lost_rotation_is_healed_by_rotating_again(
    keys: ApiKeyService, project: Project, clock: FakeClock
) -> None:
    key, _ = await keys.issue_api_key(project.tenant_id, project.id, name="ci")
    overlap = timedelta(hours=1)
    clock.advance(1)
    await keys.rotate_api_key(project.tenant_id, key.id, overlap=overlap)
    first_end = clock.now() + overlap
    clock.advance(600)
    again, _ = await keys.rotate_api_key(project.tenant_id, key.id, overlap=overlap)
    assert again.id == key.id
    newest, lost, oldest = await keys.list_secrets(project.tenant_id, key.id)
    assert newest.expires_at is None
    assert lost.expires_at == clock.now() + overlap
    assert oldest.expires_at == first_end


async def test_without_overlap_older_secrets_end_at_once(
    keys: ApiKeyService, project: Project, clock: FakeClock
) -> None:
    key, _ = await keys.issue_api_key(project.tenant_id, project.id, name="ci")
    clock.advance(1)
    await keys.rotate_api_key(project.tenant_id, key.id, overlap=timedelta())
    _, old = await keys.list_secrets(project.tenant_id, key.id)
    assert old.expires_at == clock.now()


@pytest.mark.parametrize("overlap", [timedelta(seconds=-1), timedelta(days=31)])
async def test_an_overlap_outside_its_bounds_is_refused(
    keys: ApiKeyService, project: Project, overlap: timedelta
) -> None:
    key, _ = await keys.issue_api_key(project.tenant_id, project.id, name="ci")
    with pytest.raises(InvalidInput):
        await keys.rotate_api_key(project.tenant_id, key.id, overlap=overlap)


async def test_revoking_is_for_good_and_idempotent(
    keys: ApiKeyService, project: Project, clock: FakeClock
) -> None:
    key, _ = await keys.issue_api_key(project.tenant_id, project.id, name="ci")
    revoked_at = (await keys.revoke_api_key(project.tenant_id, key.id)).revoked_at
    clock.advance(60)
    assert (await keys.revoke_api_key(project.tenant_id, key.id)).revoked_at == revoked_at
    with pytest.raises(Conflict):
        await keys.rotate_api_key(project.tenant_id, key.id)


async def test_another_tenants_key_or_project_is_not_found(
    keys: ApiKeyService, project: Project
) -> None:
    key, _ = await keys.issue_api_key(project.tenant_id, project.id, name="ci")
    stranger = new_id()
    with pytest.raises(NotFound):
        await keys.issue_api_key(stranger, project.id, name="ci")
    with pytest.raises(NotFound):
        await keys.rotate_api_key(stranger, key.id)
    with pytest.raises(NotFound):
        await keys.revoke_api_key(stranger, key.id)


@pytest.mark.parametrize("scopes", [[], ["inference", "root"]])
async def test_unknown_or_no_scopes_are_refused(
    keys: ApiKeyService, project: Project, scopes: list[str]
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await keys.issue_api_key(project.tenant_id, project.id, name="ci", scopes=scopes)
    assert refusal.value.param == "scopes"


async def test_an_expiry_in_the_past_is_refused(
    keys: ApiKeyService, project: Project, clock: FakeClock
) -> None:
    with pytest.raises(InvalidInput):
        await keys.issue_api_key(project.tenant_id, project.id, name="ci", expires_at=clock.now())
