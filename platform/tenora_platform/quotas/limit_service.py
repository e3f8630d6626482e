"""Setting and reading limits: what an operator does with quotas. Admission is `service.py`."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import InvalidInput, NotFound
from tenora_platform.kit.clock import Clock
from tenora_platform.kit.ids import new_id
from tenora_platform.quotas.limits import BudgetPeriod, Limit, LimitKind, ScopeKind
from tenora_platform.quotas.repository import LimitRepository
from tenora_platform.tenants.service import TenantService


class LimitService:
    """Business verbs on limits. Works in the caller's system session and never commits."""

    def __init__(self, session: AsyncSession, clock: Clock) -> None:
        self._limits = LimitRepository(session)
        self._tenants = TenantService(session, clock)
        self._clock = clock

    async def set_limit(
        self,
        tenant_id: UUID,
        *,
        scope_kind: ScopeKind,
        scope_id: UUID,
        kind: LimitKind,
        value: int,
        period: BudgetPeriod | None = None,
        burst: int | None = None,
    ) -> Limit:
        """Create or replace a limit on the tenant, one of its projects or one of its keys.

        A replaced limit keeps its id. Takes effect within the authenticator's TTL. Raises
        NotFound if the scope is not the tenant's, and InvalidInput for a bad value.
        """
        await self._tenants.require_scope(tenant_id, scope_kind, scope_id)
        try:
            limit = Limit(
                id=str(new_id()),
                scope_kind=scope_kind,
                scope_id=str(scope_id),
                kind=kind,
                value=value,
                period=period,
                burst=burst,
            )
        except ValueError as error:
            raise InvalidInput(f"The limit is not valid: {error}.", param="value") from error
        return await self._limits.put(tenant_id, limit, updated_at=self._clock.now())

    async def list_limits(self, tenant_id: UUID) -> Sequence[Limit]:
        """Every limit of the tenant, on whatever scope."""
        return await self._limits.list_limits(tenant_id)

    async def limits_of_key(
        self, tenant_id: UUID, *, project_id: UUID, api_key_id: UUID
    ) -> tuple[Limit, ...]:
        """All limits that bind a key: its tenant's, its project's and its own."""
        return await self._limits.list_for_key(
            tenant_id, project_id=project_id, api_key_id=api_key_id
        )

    async def clear_limit(self, tenant_id: UUID, limit_id: UUID) -> None:
        """Remove one limit of the tenant. Raises NotFound."""
        if not await self._limits.remove(tenant_id, limit_id):
            raise NotFound("There is no such limit.")
