"""Creating operators and giving them passwords. Verifying who is one is `auth.operators`' part."""

import asyncio
import re
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.operators import hash_password
from tenora_platform.auth.repository import find_operator
from tenora_platform.errors import InvalidInput
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id
from tenora_platform.tenants.models import Operator
from tenora_platform.tenants.repository import TenantRepository
from tenora_platform.tenants.service import checked_name

MIN_PASSWORD_LENGTH: Final = 12
MAX_PASSWORD_LENGTH: Final = 1024
_EMAIL = re.compile(r"[^@\s\0]{1,64}@[^@\s\0]{1,255}")


async def create_operator(
    session: AsyncSession, clock: Clock, *, email: str, name: str, password: str
) -> Operator:
    """A new operator, in the caller's system session.

    Raises InvalidInput for a bad address, name or password, and Conflict if the address is used.
    """
    address = _normal(email)
    if _EMAIL.fullmatch(address) is None:
        raise InvalidInput("That is not an e-mail address.", param="email")
    operator = Operator(
        id=new_id(),
        email=address,
        name=checked_name(name),
        password_hash=await _checked_hash(password),
        status="active",
        created_at=clock.now(),
    )
    await TenantRepository(session).add_unique(operator, f"{address} is an operator already.")
    return operator


async def set_operator_password(session: AsyncSession, *, email: str, password: str) -> bool:
    """Give an operator another password, in the caller's system session; False if there is none.

    Raises InvalidInput for a bad password.
    """
    operator = await find_operator(session, _normal(email))
    if operator is None:
        return False
    operator.password_hash = await _checked_hash(password)
    await session.flush()
    return True


def _normal(email: str) -> str:
    return email.strip().lower()


async def _checked_hash(password: str) -> str:
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise InvalidInput(
            f"A password has {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters.",
            param="password",
        )
    return await asyncio.to_thread(hash_password, password)
