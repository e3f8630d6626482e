"""demo.json: private, whole, and in the documented shape."""

import json
import stat
from pathlib import Path

from tenora_platform.up.demo_file import (
    Admin,
    DemoFile,
    DemoTenant,
    read_demo_file,
    write_demo_file,
)
from tenora_platform.up.screen import curl_line

DEMO = DemoFile(
    base_url="http://127.0.0.1:8000",
    base_model="smollm2-135m-instruct",
    admin=Admin(email="admin@tenora.local", password="secret"),
    tenants=[DemoTenant(id="1", name="acme", api_key="sk-tenora-abc", adapters=["support"])],
)


def test_has_the_documented_shape_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    write_demo_file(path, DEMO)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "base_url": "http://127.0.0.1:8000",
        "base_model": "smollm2-135m-instruct",
        "admin": {"email": "admin@tenora.local", "password": "secret"},
        "tenants": [
            {"id": "1", "name": "acme", "api_key": "sk-tenora-abc", "adapters": ["support"]}
        ],
    }
    assert read_demo_file(path) == DEMO


def test_damaged_file_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    path.write_text('{"base_url": "http')
    assert read_demo_file(path) is None


def test_curl_line_is_one_line_that_calls_the_first_adapter() -> None:
    line = curl_line(DEMO)
    assert "\n" not in line
    assert "http://127.0.0.1:8000/v1/chat/completions" in line
    assert "'Authorization: Bearer sk-tenora-abc'" in line
    assert '"model": "support"' in line
