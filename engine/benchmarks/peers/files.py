"""The files that all systems serve: one model folder without an end token, eight adapters."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from synthetic_adapters import MIXED_RANKS, adapter_files

from peers.cells import ADAPTERS
from peers.systems.base import Site

CONFIGS = ("config.json", "generation_config.json")


def endless_model(source: Path, target: Path) -> Path:
    """A copy of a model folder that declares no end of output, so every answer has full length.

    Tenora's API has no `ignore_eos`; with this copy no system needs one. Weights are linked.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in source.iterdir():
        copy = target / path.name
        if path.name in CONFIGS:
            copy.write_text(json.dumps(without_end(json.loads(path.read_text())), indent=2))
        elif path.name == "tokenizer_config.json":
            fields = json.loads(path.read_text())
            copy.write_text(json.dumps({k: v for k, v in fields.items() if k != "eos_token"}))
        elif path.name != "special_tokens_map.json":
            copy.symlink_to(path.resolve())
    return target


def without_end(config: dict[str, Any]) -> dict[str, Any]:
    """A `config.json` or `generation_config.json` that names no end token."""
    return {name: value for name, value in config.items() if name != "eos_token_id"}


def adapter_folders(model_dir: Path, target: Path) -> dict[str, Path]:
    """The mixed adapters as PEFT folders by name, for systems that read them from disk."""
    config = json.loads((model_dir / "config.json").read_text())
    folders = {}
    for seed, (name, rank) in enumerate(zip(ADAPTERS, MIXED_RANKS, strict=True)):
        folder = folders[name] = target / name
        if folder.is_dir():
            continue
        partial = target / f".{name}.partial"
        partial.mkdir(parents=True, exist_ok=True)
        for file, content in adapter_files(config, rank, seed).items():
            (partial / file).write_bytes(content)
        partial.rename(folder)
    return folders


def lay_out(work: Path, model_dir: Path, concurrency: int) -> Site:
    """Lay the files that all systems serve below `work`, for up to `concurrency` clients."""
    work = work.resolve()
    served = endless_model(model_dir, work / "model" / model_dir.name)
    return Site(
        work=work,
        model_dir=served,
        adapters=adapter_folders(served, work / "adapters"),
        threads=len(os.sched_getaffinity(0)),
        concurrency=concurrency,
    )
