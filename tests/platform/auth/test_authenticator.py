"""Authentication: one refusal for all bad keys, and a bound on how long a dead key works."""

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.api_keys import new_secret
from tenora_platform.auth.authenticator import Authenticator
from tenora_platform.auth.principal import Principal
from tenora_platform.db.session import Database
from tenora_platform.errors import PermissionDenied, PlatformError, Unauthenticated
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.limit_service import LimitService
from tenora_platform.tenants.api_keys import DEFAULT_SCOPES, ApiKeyService
from tenora_platform.tenants.provisioning import (
    ProvisionedTenant,
    TenantLimit,
    provision_tenant,
)
from tenora_platform.tenants.service import Status, TenantService
from tests.support.clock import FakeClock

TTL_S = 5.0


class World:
    """A tenant, and two processes' authenticators on one clock."""

    def __init__(self, database: Database, made: ProvisionedTenant, clock: FakeClock) -> None:
        self.database = database
        self.clock = clock
        self.tenant, self.key, self.secret = made.tenant, made.api_key, made.secret
        self.project = made.project
        self.processes = [Authenticator(database, clock, TTL_S) for _ in range(2)]

    async def outcomes(self, secret: str | None = None) -> list[type[PlatformError] | None]:
        """What each process answers: an error's type, or None for a principal."""
        answers: list[type[PlatformError] | None] = []
        for process in self.processes:
            try:
                await process.authenticate(f"Bearer {secret or self.secret}")
            except PlatformError as error:
                answers.append(type(error))
            else:
                answers.append(None)
        return answers

    async def principal(self, secret: str | None = None) -> Principal:
        return await self.processes[0].authenticate(f"Bearer {secret or self.secret}")

    async def set_status(self, status: Status) -> None:
        async with self.database.system() as session:
            await TenantService(session, self.clock).set_tenant_status(self.tenant.id, status)


@pytest.fixture
async def world(database: Database) -> World:
    clock = FakeClock()
    made = await provision_tenant(
        database,
        clock,
        slug=f"t-{new_id().hex}",
        name="Acme",
        time_zone="Europe/Vienna",
        limits=[TenantLimit("requests_per_minute", 60, burst=10)],
    )
    return World(database, made, clock)


async def test_a_principal_has_all_that_admission_needs(world: World) -> None:
    async with world.database.system() as session:
        await LimitService(session, world.clock).set_limit(
            world.tenant.id,
            scope_kind="api_key",
            scope_id=world.key.id,
            kind="budget",
            value=7,
            period="month",
        )
    principal = await world.principal()
    assert principal.tenant_id == world.tenant.id
    assert principal.project_id == world.project.id
    assert principal.api_key_id == world.key.id
    assert principal.api_key_scopes == DEFAULT_SCOPES
    assert principal.tenant_time_zone == "Europe/Vienna"
    assert {(one.scope_kind, one.kind, one.value, one.burst) for one in principal.limits} == {
        ("tenant", "requests_per_minute", 60, 10),
        ("api_key", "budget", 7, None),
    }


async def test_limits_of_other_scopes_do_not_apply(world: World) -> None:
    async with world.database.system() as session:
        other, _ = await ApiKeyService(session, world.clock).issue_api_key(
            world.tenant.id, world.project.id, name="other"
        )
        await LimitService(session, world.clock).set_limit(
            world.tenant.id, scope_kind="api_key", scope_id=other.id, kind="concurrency", value=1
        )
    assert {limit.scope_kind for limit in (await world.principal()).limits} == {"tenant"}


async def test_every_bad_key_gets_one_answer_that_does_not_repeat_it(world: World) -> None:
    async with world.database.system() as session:
        keys = ApiKeyService(session, world.clock)
        expired, expired_secret = await keys.issue_api_key(
            world.tenant.id,
            world.project.id,
            name="expired",
            expires_at=world.clock.now() + timedelta(seconds=1),
        )
        revoked, revoked_secret = await keys.issue_api_key(
            world.tenant.id, world.project.id, name="revoked"
        )
        await keys.revoke_api_key(world.tenant.id, revoked.id)
    world.clock.advance(1)
    answers = set()
    for secret in (expired_secret, revoked_secret, new_secret(), "sk-tenora-malformed"):
        with pytest.raises(Unauthenticated) as refusal:
            await world.principal(secret)
        answers.add((refusal.value.message, refusal.value.code, refusal.value.status))
        assert secret not in str(refusal.value)
    assert len(answers) == 1
    assert expired.id != revoked.id


async def test_a_revoked_key_ends_on_every_process_within_the_ttl(world: World) -> None:
    assert await world.outcomes() == [None, None]
    async with world.database.system() as session:
        await ApiKeyService(session, world.clock).revoke_api_key(world.tenant.id, world.key.id)
    world.clock.advance(TTL_S)
    assert await world.outcomes() == [Unauthenticated, Unauthenticated]


async def test_requests_that_come_together_ask_the_database_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _count_sessions(world.database, monkeypatch)
    process = world.processes[0]
    tasks = [asyncio.create_task(process.authenticate(f"Bearer {world.secret}")) for _ in range(16)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # who began the look-up leaves, and the others do not notice
    principals = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(principals[0], asyncio.CancelledError)
    assert {type(one) for one in principals[1:]} == {Principal}
    assert len(asked) == 1


async def test_an_answer_that_others_waited_for_too_long_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _count_sessions(world.database, monkeypatch)
    process = world.processes[0]
    first = asyncio.create_task(process.authenticate(f"Bearer {world.secret}"))
    await asyncio.sleep(0)
    world.clock.advance(TTL_S)
    later = [process.authenticate(f"Bearer {world.secret}") for _ in range(8)]
    await asyncio.gather(first, *later)
    assert len(asked) == 2


async def test_who_comes_in_the_turn_in_which_a_slow_answer_lands_asks_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.processes[0]
    look_up = process._look_up
    late: list[asyncio.Task[Principal]] = []

    async def slow(digest: str, asked_at: float) -> object:
        entry = await look_up(digest, asked_at)
        if not late:
            world.clock.advance(TTL_S)
            late.append(asyncio.create_task(process.authenticate(f"Bearer {world.secret}")))
        return entry

    monkeypatch.setattr(process, "_look_up", slow)
    await process.authenticate(f"Bearer {world.secret}")
    assert await late[0] == await world.principal()


async def test_the_cache_spares_the_database_within_the_ttl(world: World) -> None:
    await world.principal()
    async with world.database.system() as session:
        await session.execute(
            text("update api_keys set scopes = '{admin}' where id = :id"), {"id": world.key.id}
        )
    world.clock.advance(TTL_S - 0.001)
    assert (await world.principal()).api_key_scopes == DEFAULT_SCOPES
    world.clock.advance(0.001)
    assert (await world.principal()).api_key_scopes == {"admin"}


async def test_a_key_expires_on_time_although_it_is_cached(world: World) -> None:
    async with world.database.system() as session:
        _, secret = await ApiKeyService(session, world.clock).issue_api_key(
            world.tenant.id,
            world.project.id,
            name="short",
            expires_at=world.clock.now() + timedelta(seconds=2),
        )
    assert await world.outcomes(secret) == [None, None]
    world.clock.advance(2)
    assert await world.outcomes(secret) == [Unauthenticated, Unauthenticated]


async def test_suspension_and_reactivation_take_effect_within_the_ttl(world: World) -> None:
    await world.outcomes()
    await world.set_status("suspended")
    world.clock.advance(TTL_S)
    assert await world.outcomes() == [PermissionDenied, PermissionDenied]
    await world.set_status("active")
    world.clock.advance(1)
    assert await world.outcomes() == [None, None]


async def test_a_suspended_project_is_named_as_the_reason(world: World) -> None:
    async with world.database.system() as session:
        await TenantService(session, world.clock).set_project_status(
            world.tenant.id, world.project.id, "suspended"
        )
    with pytest.raises(PermissionDenied, match="project is suspended"):
        await world.principal()


async def test_the_keys_of_a_deleted_tenant_are_unknown(world: World) -> None:
    await world.outcomes()
    async with world.database.system() as session:
        await TenantService(session, world.clock).delete_tenant(world.tenant.id)
    world.clock.advance(TTL_S)
    assert await world.outcomes() == [Unauthenticated, Unauthenticated]


async def test_an_unknown_key_is_remembered_for_a_second_at_most(world: World) -> None:
    async with world.database.system() as session:
        await session.execute(
            text("update api_keys set revoked_at = created_at where id = :id"),
            {"id": world.key.id},
        )
    assert await world.outcomes() == [Unauthenticated, Unauthenticated]
    async with world.database.system() as session:
        await session.execute(
            text("update api_keys set revoked_at = null where id = :id"), {"id": world.key.id}
        )
    world.clock.advance(1)
    assert await world.outcomes() == [None, None]


async def test_after_rotation_both_secrets_work_until_the_overlap_ends(world: World) -> None:
    async with world.database.system() as session:
        rotated, fresh = await ApiKeyService(session, world.clock).rotate_api_key(
            world.tenant.id, world.key.id, overlap=timedelta(hours=1)
        )
    assert rotated.id == world.key.id
    assert (await world.principal(fresh)).api_key_id == world.key.id
    assert (await world.principal()).api_key_id == world.key.id
    world.clock.advance(3600)
    assert await world.outcomes() == [Unauthenticated, Unauthenticated]
    assert (await world.principal(fresh)).api_key_id == world.key.id


def _count_sessions(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list that grows with each system session of `database`."""
    begun: list[None] = []
    system = database.system

    def counted() -> AbstractAsyncContextManager[AsyncSession]:
        begun.append(None)
        return system()

    monkeypatch.setattr(database, "system", counted)
    return begun
