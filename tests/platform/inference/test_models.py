"""GET /v1/models: exactly what the key can call, and nobody else's names."""

from tests.support.app import Stack


async def test_lists_the_base_model_and_the_tenants_own_ready_adapters(stack: Stack) -> None:
    owner, other = await stack.new_tenant(), await stack.new_tenant()
    await stack.upload(owner, "mine")
    await stack.upload(other, "theirs")
    models = (await stack.client.get("/v1/models", headers=owner.headers)).json()
    assert models["object"] == "list"
    base, adapter = models["data"]
    assert (base["id"], base["owned_by"]) == (stack.base_model, "tenora")
    assert (adapter["id"], adapter["owned_by"]) == ("mine", "tenant")
    assert adapter["parent"] == stack.base_model
    assert adapter["object"] == "model"


async def test_everything_listed_can_be_called(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    await stack.upload(tenant, "mine")
    models = (await stack.client.get("/v1/models", headers=tenant.headers)).json()["data"]
    for model in models:
        assert (await stack.chat(tenant, model=model["id"])).status_code == 200
        found = await stack.client.get(f"/v1/models/{model['id']}", headers=tenant.headers)
        assert found.json() == model


async def test_an_id_with_a_slash_can_be_looked_up(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    response = await stack.client.get("/v1/models/org/model", headers=tenant.headers)
    assert response.status_code == 404
    assert "'org/model'" in response.json()["error"]["message"]


async def test_another_tenants_adapter_is_not_found(stack: Stack) -> None:
    owner, other = await stack.new_tenant(), await stack.new_tenant()
    await stack.upload(owner, "mine")
    response = await stack.client.get("/v1/models/mine", headers=other.headers)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
