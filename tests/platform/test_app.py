"""The composition root: what it must not pull in, and that it starts from the environment."""

import os
import subprocess
import sys
from pathlib import Path


def test_an_api_node_needs_no_torch(tmp_path: Path) -> None:
    program = """
import sys
import tenora_platform.app as app
app.app_from_environ()
heavy = {"torch", "triton", "transformers", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
"""
    urls = {
        "TENORA_DATABASE_URL": "postgresql+asyncpg://x@/x",
        "TENORA_REDIS_URL": "redis://",
        "TENORA_ENGINE_URL": f"ipc://{tmp_path}/engine.sock",
        "TENORA_OBJECT_STORE_URL": f"file://{tmp_path}",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **urls},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
