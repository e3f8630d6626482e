import pytest

from tenora_platform.db.session import Database
from tenora_platform.errors import Conflict, InvalidInput
from tenora_platform.kit.ids import new_id
from tenora_platform.tenants.operators import create_operator
from tests.support.clock import FakeClock


@pytest.mark.parametrize(
    ("email", "password", "param"),
    [
        ("nobody", "long enough password", "email"),
        ("a b@example.com", "long enough password", "email"),
        ("nul\0@example.com", "long enough password", "email"),
        ("ok@example.com", "too short", "password"),
        ("ok@example.com", "x" * 1025, "password"),
    ],
)
async def test_bad_input_is_refused_by_field(
    database: Database, email: str, password: str, param: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        async with database.system() as session:
            await create_operator(session, FakeClock(), email=email, name="Op", password=password)
    assert refusal.value.param == param


async def test_an_address_is_used_once_whatever_its_case(database: Database) -> None:
    name = new_id().hex
    async with database.system() as session:
        await create_operator(
            session, FakeClock(), email=f"{name}@x.org", name="Op", password="long enough one"
        )
        with pytest.raises(Conflict):
            await create_operator(
                session, FakeClock(), email=f"{name.upper()}@X.org", name="Op", password="p" * 12
            )
