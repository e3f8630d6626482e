import pytest
from sqlalchemy import text

from tenora_platform.auth.operators import act_for, verify_operator
from tenora_platform.db.session import Database
from tenora_platform.errors import Unauthenticated
from tenora_platform.kit.ids import new_id
from tenora_platform.tenants.operators import create_operator, set_operator_password
from tests.support.clock import FakeClock

PASSWORD = "correct horse battery"


@pytest.fixture
async def email(database: Database) -> str:
    address = f"{new_id().hex}@example.com"
    async with database.system() as session:
        await create_operator(session, FakeClock(), email=address, name="Op", password=PASSWORD)
    return address


async def test_the_right_password_identifies_the_operator(database: Database, email: str) -> None:
    operator = await verify_operator(database, f" {email.upper()} ", PASSWORD)
    assert (operator.email, operator.name) == (email, "Op")


@pytest.mark.parametrize(
    ("address", "password"),
    [
        (None, "wrong password"),
        ("nobody@example.com", PASSWORD),
        ("\0@example.com", PASSWORD),
        (None, ""),
    ],
)
async def test_every_failure_has_one_answer(
    database: Database, email: str, address: str | None, password: str
) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        await verify_operator(database, address or email, password)
    assert refusal.value.code == "invalid_login"
    assert refusal.value.message == "The e-mail address or the password is wrong."


async def test_a_suspended_operator_is_refused(database: Database, email: str) -> None:
    async with database.system() as session:
        await session.execute(
            text("update operators set status = 'suspended' where email = :email"),
            {"email": email},
        )
    with pytest.raises(Unauthenticated):
        await verify_operator(database, email, PASSWORD)


async def test_the_password_is_stored_as_an_argon2id_hash(database: Database, email: str) -> None:
    async with database.system() as session:
        stored = await session.scalar(
            text("select password_hash from operators where email = :email"), {"email": email}
        )
    assert stored is not None
    assert stored.startswith("$argon2id$")


async def test_a_new_password_replaces_the_old_one(database: Database, email: str) -> None:
    async with database.system() as session:
        assert await set_operator_password(session, email=email, password="another long one")
        assert not await set_operator_password(
            session, email="nobody@example.com", password="another long one"
        )
    await verify_operator(database, email, "another long one")
    with pytest.raises(Unauthenticated):
        await verify_operator(database, email, PASSWORD)


async def test_an_operator_may_act_for_a_tenant(database: Database, email: str) -> None:
    operator = await verify_operator(database, email, PASSWORD)
    tenant_id = new_id()
    assert act_for(operator, tenant_id).tenant_id == tenant_id
