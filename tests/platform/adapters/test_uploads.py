"""The multipart side of an upload: parts, limits while reading, nothing left after a refusal."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.app import Stack, TestTenant, adapter_files, nothing_is_left_of_uploads


async def _post(stack: Stack, tenant: TestTenant, files: Any, **data: str) -> httpx.Response:
    return await stack.client.post("/v1/adapters", data=data, files=files, headers=tenant.headers)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"adapter_config.json": ("adapter_config.json", b"{}")}, "missing_required_field"),
        ({**adapter_files(), "x": ("adapter_model.bin", b"pickle")}, "unexpected_part"),
        ({**adapter_files(), "x": ("../../adapter_config.json", b"{}")}, "unexpected_part"),
        ({**adapter_files(), "x": ("adapter_config.json", b"{}")}, "invalid_value"),
    ],
)
async def test_only_the_two_expected_files_are_taken(stack: Stack, files: Any, code: str) -> None:
    response = await _post(stack, await stack.new_tenant(), files, name="a")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code
    assert nothing_is_left_of_uploads(stack)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("adapter_config.json", 1025),
        ("adapter_model.safetensors", 128 * 1024 + 1),
        ("adapter_model.safetensors", 1024 * 1024),
    ],
)
async def test_a_file_over_its_limit_is_413_and_leaves_nothing(
    stack: Stack, name: str, size: int
) -> None:
    files = {**adapter_files(), name: (name, b"x" * size, "application/octet-stream")}
    response = await _post(stack, await stack.new_tenant(), files, name="a")
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"
    assert nothing_is_left_of_uploads(stack)


async def test_the_limit_holds_without_a_content_length(stack: Stack, live_url: str) -> None:
    tenant = await stack.new_tenant()
    boundary = "b"

    async def body() -> Any:
        yield (
            b'--b\r\nContent-Disposition: form-data; name="f"; '
            b'filename="adapter_model.safetensors"\r\n\r\n'
        )
        for _ in range(64):
            yield b"x" * 8192

    headers = {**tenant.headers, "content-type": f"multipart/form-data; boundary={boundary}"}
    async with httpx.AsyncClient(base_url=live_url) as client:
        response = await client.post("/v1/adapters", content=body(), headers=headers)
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--b--"),
        ("multipart/form-data; boundary=b", b"garbage"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="na'),
        ("multipart/form-data; boundary=b", b""),
    ],
)
async def test_what_is_not_multipart_is_400(
    stack: Stack, content_type: str, content: bytes
) -> None:
    tenant = await stack.new_tenant()
    headers = {**tenant.headers, "content-type": content_type}
    response = await stack.client.post("/v1/adapters", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_concurrent_uploads_of_one_name_get_revisions_of_their_own(stack: Stack) -> None:
    tenant = await stack.new_tenant()
    answers = await asyncio.gather(*(stack.upload(tenant, "one") for _ in range(5)))
    assert sorted(a.json()["revision"] for a in answers) == [1, 2, 3, 4, 5]
