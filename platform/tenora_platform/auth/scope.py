"""`TenantScope`: proof that a tenant was authenticated. Only this folder may mint one.

Everything that reads a tenant's rows takes a scope, so code that never authenticated a tenant
has nothing to pass. `Database.tenant(scope)` turns it into row-level security.
"""

from typing import Final
from uuid import UUID

_MINTED: Final = object()


class TenantScope:
    """One authenticated tenant. Immutable, compared by tenant; made by `mint` alone."""

    __slots__ = ("_tenant_id",)

    def __init__(self, tenant_id: UUID, *, proof: object = None) -> None:
        if proof is not _MINTED:
            raise TypeError("a TenantScope comes from authentication, not from a constructor call")
        self._tenant_id = tenant_id

    @property
    def tenant_id(self) -> UUID:
        """The tenant whose rows this scope may touch."""
        return self._tenant_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TenantScope) and other._tenant_id == self._tenant_id

    def __hash__(self) -> int:
        return hash(self._tenant_id)

    def __repr__(self) -> str:
        return f"TenantScope({self._tenant_id})"


def mint(tenant_id: UUID) -> TenantScope:
    """The scope of `tenant_id`. Call it in `auth/` only, after a credential was verified."""
    return TenantScope(tenant_id, proof=_MINTED)
