"""Operators: people who administer the installation, known by e-mail address and password.

An operator may act for a tenant; that is the other way, beside an API key, to a `TenantScope`.
"""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from tenora_platform.auth.repository import find_operator
from tenora_platform.auth.scope import TenantScope, mint
from tenora_platform.db.session import Database
from tenora_platform.errors import Unauthenticated

_HASHER = PasswordHasher()  # Argon2id with the library's RFC 9106 low-memory parameters
# Verified when nobody has the address, so that the time taken does not tell who exists.
_NOBODY = _HASHER.hash("nobody has this password")


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """An operator whose password was verified."""

    operator_id: UUID
    email: str
    name: str


def hash_password(password: str) -> str:
    """The Argon2id hash to store. Takes tens of milliseconds: call it off the event loop."""
    return _HASHER.hash(password)


async def verify_operator(database: Database, email: str, password: str) -> OperatorIdentity:
    """The operator with this address and password.

    Raises Unauthenticated, with one answer for an unknown address, a wrong password and a
    suspended operator. Failures are to be rate-limited by the caller.
    """
    address = email.strip().lower()
    async with database.system() as session:
        operator = await find_operator(session, address) if "\0" not in address else None
    expected = _NOBODY if operator is None else operator.password_hash
    matches = await asyncio.to_thread(_matches, expected, password)
    if operator is None or not matches or operator.status != "active":
        raise Unauthenticated("The e-mail address or the password is wrong.", code="invalid_login")
    return OperatorIdentity(operator_id=operator.id, email=operator.email, name=operator.name)


def act_for(_operator: OperatorIdentity, tenant_id: UUID) -> TenantScope:
    """The scope of a tenant on whose behalf a verified operator acts."""
    return mint(tenant_id)


def _matches(expected: str, password: str) -> bool:
    try:
        return _HASHER.verify(expected, password)
    except (VerificationError, InvalidHashError):
        return False
