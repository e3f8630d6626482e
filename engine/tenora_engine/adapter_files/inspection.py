"""Inspects uploads for the engine's front: fetch, judge in a child process, store by digest."""

import asyncio
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError as ObjectStoreError
from obstore.store import ObjectStore

from tenora_engine.adapter_files.child_process import InspectionLimits, run_inspection
from tenora_engine.adapter_files.config_fields import MAX_CONFIG_BYTES
from tenora_engine.adapter_files.examine import InspectionJob
from tenora_engine.adapter_files.header import MAX_HEADER_BYTES
from tenora_engine.adapter_files.object_store import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    canonical_key,
    open_store,
)
from tenora_engine.adapter_files.shapes import BaseShapes, UnsupportedBaseError
from tenora_engine.adapter_files.values import ServingDtype
from tenora_engine.config import EngineConfig
from tenora_engine.protocol.errors import EngineUnavailableError, InvalidRequestError
from tenora_engine.protocol.messages import AdapterProblem, AdapterReport, InspectRequest

MAX_PARALLEL = 2
"""Inspections that run at once; further ones wait."""

DOWNLOAD_CHUNK_BYTES = 4 << 20

_SERVING_DTYPES: dict[str, ServingDtype] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*/?")


class AdapterInspector:
    """Owns the folder of running inspections below the replica's state folder.

    Raises:
        UnsupportedBaseError: the base model's layout is not known.
    """

    def __init__(self, config: EngineConfig, limits: InspectionLimits | None = None) -> None:
        base_config = json.loads((config.model_dir / "config.json").read_text())
        self._shapes = BaseShapes.from_config(base_config)
        self._serving_dtype = serving_dtype(config, base_config)
        self._config = config
        self._limits = limits or InspectionLimits()
        self._store = open_store(config.object_store_url)
        self._running = asyncio.Semaphore(MAX_PARALLEL)
        self._folder = config.state_dir / "inspections"
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a replica that was killed
        self._folder.mkdir(parents=True, mode=0o700)

    async def inspect(self, request: InspectRequest) -> AdapterReport:
        """Judge the upload under `request.prefix`.

        Whatever is wrong with the upload, including what ends the inspection early, is in the
        report. On acceptance the canonical file is in the store under its digest. Idempotent.

        Raises:
            InvalidRequestError: the prefix is not one that the platform makes.
            EngineUnavailableError: the object store does not answer; a retry may succeed.
        """
        if not _PREFIX.fullmatch(request.prefix):
            raise InvalidRequestError("prefix must be a plain object store prefix", param="prefix")
        async with self._running:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            try:
                return await self._inspect_in(folder, request.prefix.rstrip("/"))
            except (ObjectStoreError, OSError) as error:
                raise EngineUnavailableError(
                    "The object store or the disk does not answer; try the inspection again."
                ) from error
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    async def _inspect_in(self, folder: Path, prefix: str) -> AdapterReport:
        bounds = {CONFIG_NAME: MAX_CONFIG_BYTES, WEIGHTS_NAME: self._config.max_adapter_bytes}
        problems = [
            problem
            for name, max_bytes in bounds.items()
            if (problem := await _download(self._store, prefix, name, folder, max_bytes))
        ]
        if problems:
            return AdapterReport(ref=None, problems=tuple(problems))
        job = self._job(folder)
        report = await run_inspection(job, self._limits, self._max_canonical_bytes)
        if report.ref is not None:
            await self._keep(Path(job.canonical_path), report.ref.digest, report.size_bytes)
        return report

    def _job(self, folder: Path) -> InspectionJob:
        return InspectionJob(
            config_path=str(folder / CONFIG_NAME),
            weights_path=str(folder / WEIGHTS_NAME),
            canonical_path=str(folder / "canonical.safetensors"),
            shapes=self._shapes,
            base_model=self._config.base_model,
            serving_dtype=self._serving_dtype,
            max_rank=self._config.max_lora_rank,
        )

    @property
    def _max_canonical_bytes(self) -> int:
        """A fused projection's `lora_a` is written once for each of its parts."""
        most_parts = max(len(shape.parts) for shape in self._shapes.modules.values())
        return most_parts * self._config.max_adapter_bytes + MAX_HEADER_BYTES

    async def _keep(self, canonical: Path, digest: str, size_bytes: int) -> None:
        """Put the canonical file into the store, unless it is there."""
        key = canonical_key(digest)
        try:
            stored = await obstore.head_async(self._store, key)
        except FileNotFoundError:
            stored = None
        if stored is None or stored["size"] != size_bytes:
            await obstore.put_async(self._store, key, canonical)


def serving_dtype(config: EngineConfig, base_config: dict[str, Any]) -> ServingDtype:
    """The dtype that adapter weights are served in; "auto" is the base model's own.

    "int8" rounds the base model's weights alone, so adapters are served as under "auto".
    """
    name: str = config.weight_dtype
    if name in {"auto", "int8"}:
        name = base_config.get("dtype") or base_config.get("torch_dtype") or "float32"
    try:
        return _SERVING_DTYPES[name]
    except KeyError as error:
        raise UnsupportedBaseError(f"weights of dtype {name} are not served") from error


async def _download(
    store: ObjectStore, prefix: str, name: str, folder: Path, max_bytes: int
) -> AdapterProblem | None:
    """Copy one uploaded file into `folder`; a problem where it is missing or too large."""
    try:
        result = await obstore.get_async(store, f"{prefix}/{name}")
    except FileNotFoundError:
        return AdapterProblem(
            code="missing_file", message=f"{name} was not uploaded; upload it.", field=name
        )
    num_bytes = 0
    with (folder / name).open("xb") as file:
        async for block in result.stream(min_chunk_size=DOWNLOAD_CHUNK_BYTES):
            num_bytes += len(block)
            if num_bytes > max_bytes:
                return AdapterProblem(
                    code="file_too_large",
                    message=f"{name} has more than {max_bytes} bytes, the most that is accepted.",
                    field=name,
                )
            await asyncio.to_thread(file.write, block)
    return None
