"""The secrets of API keys: how they look, how they are stored, how they may be shown.

A secret has 256 bits from the system's generator, so one round of SHA-256 is enough to store it:
there is nothing to guess, and checking stays cheap.
"""

import hashlib
import re
import secrets
from typing import Final

PREFIX: Final = "sk-tenora-"
_SECRET = re.compile(r"sk-tenora-[A-Za-z0-9_-]{43}")


def new_secret() -> str:
    """A fresh secret: the prefix and 43 URL-safe characters. Show it once and never store it."""
    return PREFIX + secrets.token_urlsafe(32)


def secret_sha256(secret: str) -> str:
    """What is stored of a secret and looked up by: its SHA-256 in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def redacted(secret: str) -> str:
    """How a secret is shown after it was issued: prefix and last four characters."""
    return f"{PREFIX}...{secret[-4:]}"


def parse_bearer(authorization: str | None) -> str | None:
    """The well-formed secret in an Authorization header, or None if it holds none."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    secret = value.strip()
    return secret if _SECRET.fullmatch(secret) else None
