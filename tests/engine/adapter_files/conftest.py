"""A tiny base, and a function that judges an upload without a child process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenora_engine.adapter_files.canonical import CanonicalAdapter, read_canonical
from tenora_engine.adapter_files.examine import InspectionJob, examine
from tenora_engine.adapter_files.shapes import BaseShapes
from tenora_engine.protocol.messages import AdapterReport
from tests.support.adapter_builder import TINY_BASE, Upload

MAX_RANK = 64


class Judge:
    """Judges uploads one after the other; keeps the canonical file of the last accepted one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(self, upload: Upload, **overrides: Any) -> AdapterReport:
        """Write both files and examine them."""
        return self.files(self.write(upload), **overrides)

    def write(self, upload: Upload) -> Path:
        """Write both files into a new folder."""
        self._count += 1
        return upload.write(self._folder / str(self._count))

    def weights(self, content: bytes, upload: Upload) -> AdapterReport:
        """Examine `content` as the weights file beside the upload's configuration."""
        folder = self.write(upload)
        (folder / "adapter_model.safetensors").write_bytes(content)
        return self.files(folder)

    def files(self, folder: Path, **overrides: Any) -> AdapterReport:
        """Examine a folder as it is."""
        self._count += 1
        self.canonical_path = folder / f"canonical-{self._count}.safetensors"
        job = InspectionJob(
            config_path=str(folder / "adapter_config.json"),
            weights_path=str(folder / "adapter_model.safetensors"),
            canonical_path=str(self.canonical_path),
            **{
                "shapes": BaseShapes.from_config(TINY_BASE),
                "base_model": "tenora/tiny",
                "serving_dtype": "float32",
                "max_rank": MAX_RANK,
                **overrides,
            },
        )
        return examine(job)

    def accepted(self, upload: Upload, **overrides: Any) -> CanonicalAdapter:
        """The canonical adapter of an upload that must be accepted."""
        return self.files_accepted(self.write(upload), **overrides)

    def files_accepted(self, folder: Path, **overrides: Any) -> CanonicalAdapter:
        """The canonical adapter of a folder that must be accepted."""
        report = self.files(folder, **overrides)
        assert report.problems == ()
        assert report.ref is not None
        return read_canonical(self.canonical_path, report.ref.digest)


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path)


@pytest.fixture
def codes(judge: Judge) -> Callable[..., list[str]]:
    """The distinct problem codes of a refused upload, in the order found."""

    def judge_codes(upload: Upload, **overrides: Any) -> list[str]:
        report = judge(upload, **overrides)
        assert report.ref is None, "the upload was accepted"
        assert not judge.canonical_path.exists()
        return list(dict.fromkeys(problem.code for problem in report.problems))

    return judge_codes
