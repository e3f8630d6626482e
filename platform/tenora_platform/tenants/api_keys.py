"""Issuing, rotating and revoking API keys: the part of the tenants' service that makes secrets.

A key's id is stable over rotation, so its budgets, limits and history stay with it.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth.api_keys import new_secret, redacted, secret_sha256
from tenora_platform.auth.principal import ADAPTERS, API_KEY_SCOPES, INFERENCE, USAGE
from tenora_platform.errors import Conflict, InvalidInput
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id
from tenora_platform.tenants.models import ApiKey, ApiKeySecret
from tenora_platform.tenants.repository import TenantRepository
from tenora_platform.tenants.service import checked_name, found

DEFAULT_SCOPES: Final = frozenset({INFERENCE, ADAPTERS, USAGE})
MAX_OVERLAP: Final = timedelta(days=30)


class ApiKeyService:
    """Business verbs on API keys. Works in the caller's system session and never commits."""

    def __init__(self, session: AsyncSession, clock: Clock) -> None:
        self._repository = TenantRepository(session)
        self._clock = clock

    async def issue_api_key(
        self,
        tenant_id: UUID,
        project_id: UUID,
        *,
        name: str,
        scopes: Collection[str] = DEFAULT_SCOPES,
        expires_at: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which cannot be read again.

        Raises NotFound if the project is not the tenant's, and InvalidInput for a bad name, an
        unknown scope or an expiry in the past.
        """
        found(await self._repository.get_project(tenant_id, project_id), "project")
        now = self._clock.now()
        if expires_at is not None and expires_at <= now:
            raise InvalidInput("The expiry must be in the future.", param="expires_at")
        key = ApiKey(
            id=new_id(),
            tenant_id=tenant_id,
            project_id=project_id,
            name=checked_name(name),
            scopes=_checked_scopes(scopes),
            created_at=now,
            expires_at=expires_at,
        )
        await self._repository.add(key)
        return key, await self._add_secret(key)

    async def rotate_api_key(
        self, tenant_id: UUID, api_key_id: UUID, *, overlap: timedelta = timedelta(hours=24)
    ) -> tuple[ApiKey, str]:
        """The same key and a new secret; older secrets end after `overlap` (0 to 30 days).

        If the answer is lost, rotate again: older secrets never last longer than the first
        rotation allowed. Raises NotFound, InvalidInput, or Conflict if the key is revoked.
        """
        if not timedelta() <= overlap <= MAX_OVERLAP:
            raise InvalidInput(f"The overlap is 0 to {MAX_OVERLAP.days} days.", param="overlap")
        key = await self._locked(tenant_id, api_key_id)
        if key.revoked_at is not None:
            raise Conflict("The API key is revoked. Issue a new one.")
        await self._repository.end_secrets(tenant_id, key.id, at=self._clock.now() + overlap)
        return key, await self._add_secret(key)

    async def revoke_api_key(self, tenant_id: UUID, api_key_id: UUID) -> ApiKey:
        """End the key for good, within the authenticator's TTL; idempotent. Raises NotFound."""
        key = await self._locked(tenant_id, api_key_id)
        if key.revoked_at is None:
            key.revoked_at = self._clock.now()
            await self._repository.add(key)
        return key

    async def list_api_keys(self, tenant_id: UUID) -> Sequence[ApiKey]:
        """The tenant's keys, newest first, revoked ones included."""
        return await self._repository.list_api_keys(tenant_id)

    async def list_secrets(self, tenant_id: UUID, api_key_id: UUID) -> Sequence[ApiKeySecret]:
        """The key's secrets as they may be shown (`redacted`), newest first."""
        return await self._repository.list_secrets(tenant_id, api_key_id)

    async def _locked(self, tenant_id: UUID, api_key_id: UUID) -> ApiKey:
        key = await self._repository.get_api_key(tenant_id, api_key_id, for_update=True)
        return found(key, "API key")

    async def _add_secret(self, key: ApiKey) -> str:
        secret = new_secret()
        await self._repository.add(
            ApiKeySecret(
                id=new_id(),
                tenant_id=key.tenant_id,
                api_key_id=key.id,
                secret_sha256=secret_sha256(secret),
                redacted=redacted(secret),
                created_at=self._clock.now(),
            )
        )
        return secret


def _checked_scopes(scopes: Collection[str]) -> list[str]:
    unknown = sorted(set(scopes) - API_KEY_SCOPES)
    if unknown or not scopes:
        known = ", ".join(sorted(API_KEY_SCOPES))
        raise InvalidInput(f"A key has one or more of the scopes {known}.", param="scopes")
    return sorted(set(scopes))
