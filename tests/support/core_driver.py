"""Runs a real core in this process, without a front: requests in, token ids out."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tenora_engine.config import EngineConfig
from tenora_engine.core.core import Core
from tenora_engine.core.factory import build_core
from tenora_engine.core.messages import AddSequence, SequenceOutput


def engine_config(folder: Path, model_dir: Path, **changes: Any) -> EngineConfig:
    """A small float32 replica whose files all live below `folder`."""
    settings: dict[str, Any] = {
        "model_dir": model_dir,
        "base_model": "base",
        "run_dir": folder / "run",
        "state_dir": folder / "state",
        "object_store_url": f"file://{folder / 'objects'}",
        "listen_url": f"ipc://{folder / 'run' / 'engine.sock'}",
        "weight_dtype": "float32",
        "kv_cache_bytes": 8 << 20,
        "num_threads": 1,
    }
    for name in ("run", "state", "objects"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return EngineConfig(**settings | changes)


def add(
    request_id: str,
    token_ids: Iterable[int],
    *,
    max_tokens: int = 12,
    adapter: str | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_token_ids: tuple[int, ...] = (),
) -> AddSequence:
    """One request with a cache scope that depends on the adapter."""
    return AddSequence(
        request_id=request_id,
        token_ids=tuple(token_ids),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop_token_ids=stop_token_ids,
        adapter_digest=adapter,
        cache_root=(adapter or "base").encode().ljust(32, b"\0")[:32],
        fairness_key="tenant",
        weight=1.0,
        priority=0,
    )


class CoreDriver:
    """A core and what it has said. Close it after use."""

    def __init__(self, config: EngineConfig) -> None:
        self.core: Core
        self.core, self.ready = build_core(config)
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, SequenceOutput] = {}

    def step(self) -> None:
        """One step; outputs are collected by request."""
        for output in self.core.step().sequences:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            self.last[output.request_id] = output

    def run(self, *requests: AddSequence) -> dict[str, list[int]]:
        """Add the requests together and run until the core is idle; the tokens of each."""
        for request in requests:
            self.core.handle(request)
        while self.core.has_work:
            self.step()
        return {request.request_id: self.tokens.get(request.request_id, []) for request in requests}

    def close(self) -> None:
        """Stop background work."""
        self.core.close()
