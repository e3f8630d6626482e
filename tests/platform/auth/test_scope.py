import pytest

from tenora_platform.auth.scope import TenantScope, mint
from tenora_platform.kit.ids import new_id


def test_a_scope_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError, match="authentication"):
        TenantScope(new_id())
    with pytest.raises(TypeError, match="authentication"):
        TenantScope(new_id(), proof=object())


def test_a_scope_is_immutable_and_compared_by_tenant() -> None:
    tenant_id = new_id()
    scope = mint(tenant_id)
    assert scope == mint(tenant_id)
    assert len({scope, mint(tenant_id), mint(new_id())}) == 2
    with pytest.raises(AttributeError):
        scope.tenant_id = new_id()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        scope.other = 1  # type: ignore[attr-defined]
