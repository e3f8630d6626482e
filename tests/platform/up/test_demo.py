"""Seeding the demo: once, resumable, and with keys that are never lost for good."""

import os
from pathlib import Path

import msgspec
import pytest

from tenora_platform.auth.authenticator import Authenticator
from tenora_platform.auth.operators import verify_operator
from tenora_platform.db.session import Database
from tenora_platform.errors import Unauthenticated
from tenora_platform.kit.clock import SystemClock
from tenora_platform.up.demo import seed_accounts
from tenora_platform.up.folder import DataFolder
from tenora_platform.up.roles import Installation


def installation(database_url: str) -> Installation:
    unused = DataFolder(root=Path("/nonexistent"), run=Path("/nonexistent"))
    return Installation(
        folder=unused,
        host="127.0.0.1",
        port=8000,
        database_url=database_url,
        redis_url="unix:///nonexistent",
        environ=dict(os.environ),
    )


async def test_second_start_keeps_tenants_keys_and_password(fresh_database_url: str) -> None:
    place = installation(fresh_database_url)
    first = await seed_accounts(place, "base", None)
    assert [tenant.name for tenant in first.tenants] == ["acme", "globex"]
    assert len({tenant.api_key for tenant in first.tenants}) == 2
    assert await seed_accounts(place, "base", first) == first


async def test_every_key_and_the_password_work(fresh_database_url: str) -> None:
    demo = await seed_accounts(installation(fresh_database_url), "base", None)
    database = Database(fresh_database_url)
    try:
        authenticator = Authenticator(database, SystemClock())
        for tenant in demo.tenants:
            principal = await authenticator.authenticate(f"Bearer {tenant.api_key}")
            assert str(principal.tenant_id) == tenant.id
            assert {limit.kind for limit in principal.limits} >= {"concurrency", "budget"}
        operator = await verify_operator(database, demo.admin.email, demo.admin.password)
        assert operator.email == "admin@tenora.local"
    finally:
        await database.close()


async def test_lost_file_gives_the_same_tenants_new_secrets(fresh_database_url: str) -> None:
    place = installation(fresh_database_url)
    first = await seed_accounts(place, "base", None)
    second = await seed_accounts(place, "base", None)
    assert [tenant.id for tenant in second.tenants] == [tenant.id for tenant in first.tenants]
    database = Database(fresh_database_url)
    try:
        authenticator = Authenticator(database, SystemClock())
        for old, new in zip(first.tenants, second.tenants, strict=True):
            await authenticator.authenticate(f"Bearer {new.api_key}")
            with pytest.raises(Unauthenticated):
                await authenticator.authenticate(f"Bearer {old.api_key}")
        await verify_operator(database, second.admin.email, second.admin.password)
    finally:
        await database.close()


async def test_key_of_another_database_is_replaced(fresh_database_url: str) -> None:
    place = installation(fresh_database_url)
    first = await seed_accounts(place, "base", None)
    swapped = [
        msgspec.structs.replace(mine, api_key=other.api_key)
        for mine, other in zip(first.tenants, reversed(first.tenants), strict=True)
    ]
    known = msgspec.structs.replace(first, tenants=swapped)
    second = await seed_accounts(place, "base", known)
    assert {tenant.api_key for tenant in second.tenants}.isdisjoint(
        tenant.api_key for tenant in first.tenants
    )
