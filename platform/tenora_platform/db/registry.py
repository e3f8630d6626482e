"""Imports every model, so that `metadata` describes the whole schema. For migrations and tests."""

from tenora_platform.adapters import models as _adapters
from tenora_platform.billing import models as _billing
from tenora_platform.db.base import Base
from tenora_platform.quotas import models as _quotas
from tenora_platform.tenants import models as _tenants
from tenora_platform.usage import models as _usage

__all__ = ["metadata", "tenant_owned_tables"]

_MODELS = (_adapters, _billing, _quotas, _tenants, _usage)
metadata = Base.metadata


def tenant_owned_tables() -> list[str]:
    """Names of the tables whose rows belong to one tenant, in order of dependency."""
    owned = [table for table in metadata.sorted_tables if "tenant_id" in table.columns]
    return [str(table.name) for table in owned]  # not SQLAlchemy's own kind of string
