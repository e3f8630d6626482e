"""API key to `Principal`, cached for a few seconds in each process.

The cache is what bounds revocation: a key that is revoked, expired or rotated out, or whose
tenant is suspended or deleted, is refused by every process within `ttl_s` seconds. Reads go to
the primary database, so a lagging replica cannot revive a dead key.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from tenora_platform.auth.api_keys import parse_bearer, secret_sha256
from tenora_platform.auth.principal import Principal
from tenora_platform.auth.repository import Credential, find_credential
from tenora_platform.auth.scope import mint
from tenora_platform.db.session import Database
from tenora_platform.errors import PermissionDenied, Unauthenticated
from tenora_platform.kit.clock import Clock
from tenora_platform.quotas.limit_service import LimitService

NEGATIVE_TTL_S = 1.0
MAX_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached verdict: a principal until `ends_at`, or the refusal in its place."""

    good_until: float
    principal: Principal | None
    ends_at: datetime | None = None
    suspended: str | None = None


class Authenticator:
    """Verifies API keys. One per process; safe to share between tasks."""

    def __init__(self, database: Database, clock: Clock, ttl_s: float = 5.0) -> None:
        self._database = database
        self._clock = clock
        self._ttl_s = ttl_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._flights: dict[str, asyncio.Task[_Entry]] = {}

    async def authenticate(self, authorization: str | None) -> Principal:
        """The principal of `Authorization: Bearer sk-tenora-...`.

        Raises:
            Unauthenticated: no key, or one that is malformed, unknown, expired or revoked. The
                answer is the same for all of these and never repeats the key.
            PermissionDenied: the key is genuine, but its tenant or project is suspended.
            ServiceUnavailable: the database cannot be asked.
        """
        secret = parse_bearer(authorization)
        if secret is None:
            raise Unauthenticated
        entry = await self._entry(secret_sha256(secret))
        if entry.suspended is not None:
            raise PermissionDenied(
                f"This key's {entry.suspended} is suspended. Ask the operator to reactivate it."
            )
        if entry.principal is None or _has_ended(entry.ends_at, self._clock.now()):
            raise Unauthenticated
        return entry.principal

    async def _entry(self, digest: str) -> _Entry:
        # Time is read before the query, so the verdict's age counts from before it was formed.
        asked_at = self._clock.monotonic()
        known = self._entries.get(digest)
        if known is not None and asked_at < known.good_until:
            return known
        # Who finds that others are asking waits with them. An answer that would have been too old
        # to be found in the cache is too old for them as well.
        while (flight := self._flights.get(digest)) is not None:
            entry = await asyncio.shield(flight)
            if asked_at < entry.good_until:
                return entry
        return await asyncio.shield(self._take_off(digest, self._clock.monotonic()))

    def _take_off(self, digest: str, asked_at: float) -> "asyncio.Task[_Entry]":
        """A look-up that goes on when the one who began it leaves."""
        flight = asyncio.create_task(self._fly(digest, asked_at))
        self._flights[digest] = flight
        # its error is told to those who wait; where all have left, nobody needs it
        flight.add_done_callback(lambda done: done.cancelled() or done.exception())
        return flight

    async def _fly(self, digest: str, asked_at: float) -> _Entry:
        try:
            entry = await self._look_up(digest, asked_at)
        finally:
            # here and not in a callback: who comes in the turn between would find it landed
            del self._flights[digest]
        self._entries[digest] = entry
        self._entries.move_to_end(digest)
        if len(self._entries) > MAX_CACHED:
            self._entries.popitem(last=False)
        return entry

    async def _look_up(self, digest: str, asked_at: float) -> _Entry:
        refused_until = asked_at + min(self._ttl_s, NEGATIVE_TTL_S)
        async with self._database.system() as session:
            credential = await find_credential(session, digest)
            if credential is None or _has_ended(credential.ends_at, self._clock.now()):
                return _Entry(good_until=refused_until, principal=None)
            suspended = _suspended_part(credential)
            if suspended is not None:
                return _Entry(good_until=refused_until, principal=None, suspended=suspended)
            limits = await LimitService(session, self._clock).limits_of_key(
                credential.tenant_id,
                project_id=credential.project_id,
                api_key_id=credential.api_key_id,
            )
        principal = Principal(
            scope=mint(credential.tenant_id),
            project_id=credential.project_id,
            api_key_id=credential.api_key_id,
            api_key_scopes=frozenset(credential.scopes),
            tenant_time_zone=credential.tenant_time_zone,
            limits=limits,
        )
        return _Entry(
            good_until=asked_at + self._ttl_s, principal=principal, ends_at=credential.ends_at
        )


def _has_ended(ends_at: datetime | None, now: datetime) -> bool:
    return ends_at is not None and ends_at <= now


def _suspended_part(credential: Credential) -> str | None:
    if credential.tenant_status != "active":
        return "tenant"
    if credential.project_status != "active":
        return "project"
    return None
