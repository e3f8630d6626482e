"""Who an authenticated request is: the tenant, project and key that decide what it may do.

Only the key decides this. Identity-like fields in a body or in other headers are labels.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tenora_platform.auth.scope import TenantScope
from tenora_platform.quotas.limits import Limit

INFERENCE: Final = "inference"
"""Call models and list what can be called."""
ADAPTERS: Final = "adapters"
"""Upload, list and remove adapters."""
USAGE: Final = "usage"
"""Read usage records, costs and quotas."""
ADMIN: Final = "admin"
"""Administer the tenant: projects, keys, exports."""
API_KEY_SCOPES: Final = frozenset({INFERENCE, ADAPTERS, USAGE, ADMIN})


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated API key with everything that admission needs, so it asks no database.

    `limits` are those of the tenant, the project and the key together; they and every other
    field are at most the authenticator's TTL old.
    """

    scope: TenantScope
    project_id: UUID
    api_key_id: UUID
    api_key_scopes: frozenset[str]
    tenant_time_zone: str
    limits: tuple[Limit, ...]

    @property
    def tenant_id(self) -> UUID:
        """The tenant who pays."""
        return self.scope.tenant_id

    def has_scope(self, scope: str) -> bool:
        """Whether the key was issued with `scope`."""
        return scope in self.api_key_scopes
