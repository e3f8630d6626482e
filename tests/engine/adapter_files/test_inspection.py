"""Uploads inspected through the object store and a child process with limits."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenora_engine.adapter_files import values
from tenora_engine.adapter_files.canonical import read_canonical
from tenora_engine.adapter_files.child_process import InspectionLimits
from tenora_engine.adapter_files.config_fields import MAX_CONFIG_BYTES
from tenora_engine.adapter_files.inspection import AdapterInspector
from tenora_engine.adapter_files.shapes import UnsupportedBaseError
from tenora_engine.config import EngineConfig
from tenora_engine.protocol.errors import EngineUnavailableError, InvalidRequestError
from tenora_engine.protocol.messages import AdapterReport, InspectRequest
from tests.support.adapter_builder import Upload, mk, write_base

ENDLESS_PATTERN = "(.|.|.)*!"
"""A regular expression that takes for ever to find that it does not match."""

PREFIX = "incoming/0123abcd"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"

Configure = Callable[..., EngineConfig]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def make(**fields: Any) -> EngineConfig:
        defaults: dict[str, Any] = {
            "model_dir": write_base(tmp_path / "base"),
            "base_model": "tenora/tiny",
            "run_dir": tmp_path / "run",
            "state_dir": tmp_path / "state",
            "object_store_url": f"file://{tmp_path}/objects",
            "listen_url": "ipc://unused",
        }
        return EngineConfig(**{**defaults, **fields})

    return make


async def inspect(
    config: EngineConfig, upload: Upload, limits: InspectionLimits | None = None
) -> AdapterReport:
    upload.write(objects(config) / PREFIX)
    return await AdapterInspector(config, limits).inspect(InspectRequest(prefix=PREFIX))


def objects(config: EngineConfig) -> Path:
    return Path(config.object_store_url.removeprefix("file://"))


def left_over(config: EngineConfig) -> list[Path]:
    return list((config.state_dir / "inspections").iterdir())


async def test_an_accepted_upload_is_stored_under_its_digest(configure: Configure) -> None:
    config = configure()
    report = await inspect(config, mk(use_rslora=True, r=4, alpha=8))
    assert report.ref is not None
    assert report.problems == report.warnings == ()
    assert (report.max_rank, report.num_modules, report.scalings) == (4, 28, (4.0,))
    assert report.declared_base == "tenora/tiny"
    stored = objects(config) / "adapters" / f"{report.ref.digest}.safetensors"
    assert len(read_canonical(stored, report.ref.digest).modules) == 28
    assert report.size_bytes == stored.stat().st_size
    assert report.num_parameters == sum(t.array.size for t in mk(r=4).tensors.values())
    assert left_over(config) == []


async def test_inspecting_again_keeps_the_stored_file(configure: Configure) -> None:
    config = configure()
    report = await inspect(config, mk())
    assert report.ref is not None
    stored = objects(config) / "adapters" / f"{report.ref.digest}.safetensors"
    before = stored.stat().st_ino
    assert await inspect(config, mk()) == report
    assert stored.stat().st_ino == before


async def test_a_refused_upload_stores_nothing(configure: Configure) -> None:
    config = configure()
    report = await inspect(config, mk(use_dora=True, bias="all"))
    assert report.ref is None
    assert [p.code for p in report.problems] == ["dora_unsupported", "bias_unsupported"]
    assert not (objects(config) / "adapters").exists()
    assert left_over(config) == []


async def test_missing_and_oversized_files_are_problems(configure: Configure) -> None:
    config = configure(max_adapter_bytes=1000)
    inspector = AdapterInspector(config)
    report = await inspector.inspect(InspectRequest(prefix=PREFIX))
    assert [(p.code, p.field) for p in report.problems] == [
        ("missing_file", "adapter_config.json"),
        ("missing_file", "adapter_model.safetensors"),
    ]
    folder = mk().write(objects(config) / PREFIX)
    (folder / "adapter_config.json").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    report = await inspector.inspect(InspectRequest(prefix=PREFIX))
    assert [(p.code, p.field) for p in report.problems] == [
        ("file_too_large", "adapter_config.json"),
        ("file_too_large", "adapter_model.safetensors"),
    ]
    assert left_over(config) == []


@pytest.mark.parametrize("prefix", ["", "/", "../x", "incoming/../../x", "incoming/a b", "a//b"])
async def test_refuses_a_prefix_that_the_platform_does_not_make(
    prefix: str, configure: Configure
) -> None:
    with pytest.raises(InvalidRequestError):
        await AdapterInspector(configure()).inspect(InspectRequest(prefix=prefix))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (InspectionLimits(cpu_s=1), "processor time"),
        (InspectionLimits(wall_s=1.0), "longer than 1 s"),
    ],
)
async def test_a_pattern_that_takes_for_ever_ends_as_a_refusal(
    limits: InspectionLimits, says: str, configure: Configure
) -> None:
    config = configure()
    report = await inspect(config, mk(targets=["q_proj"], exclude_modules=ENDLESS_PATTERN), limits)
    assert report.ref is None
    assert [problem.code for problem in report.problems] == ["inspection_failed"]
    assert says in report.problems[0].message
    assert left_over(config) == []


async def test_a_child_short_of_memory_ends_as_a_refusal(configure: Configure) -> None:
    """The limit lies below what numpy has already; the next large piece is one too many."""
    config = configure()
    large = np.zeros((values.CHUNK_BYTES // 256, 64))
    upload = mk().with_tensors({f"{MODULE}.lora_A.weight": large})
    assert [p.code for p in (await inspect(config, upload)).problems] == ["shape_mismatch"]
    report = await inspect(config, upload, InspectionLimits(memory_bytes=1 << 20))
    assert [problem.code for problem in report.problems] == ["inspection_failed"]
    assert "memory" in report.problems[0].message
    assert left_over(config) == []


async def test_cancelling_leaves_no_process_and_no_files(configure: Configure) -> None:
    config = configure()
    mk(targets=["q_proj"], exclude_modules=ENDLESS_PATTERN).write(objects(config) / PREFIX)
    before = children()
    task = asyncio.create_task(AdapterInspector(config).inspect(InspectRequest(prefix=PREFIX)))
    while children() == before:  # noqa: ASYNC110 - another process has no event to wait for
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == before
    assert left_over(config) == []


def children() -> set[str]:
    """Process ids of our direct children."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def test_the_child_sees_nothing_of_our_environment(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSTARTUP", "/nonexistent")
    monkeypatch.setenv("PYTHONHASHSEED", "not a number")  # would keep Python from starting
    assert (await inspect(configure(), mk())).ref is not None


async def test_many_inspections_at_once_all_answer(configure: Configure) -> None:
    config = configure()
    inspector = AdapterInspector(config)
    for index in range(4):
        mk(seed=index).write(objects(config) / f"incoming/{index}")
    reports = await asyncio.gather(
        *(inspector.inspect(InspectRequest(prefix=f"incoming/{index}")) for index in range(4))
    )
    assert len({report.ref for report in reports if report.ref}) == 4


async def test_a_store_that_does_not_answer_is_an_error_to_retry(configure: Configure) -> None:
    config = configure()
    inspector = AdapterInspector(config)
    with pytest.raises(EngineUnavailableError, match="try the inspection again"):
        await inspector.inspect(InspectRequest(prefix="n" * 300))  # no file system takes it


@pytest.mark.parametrize(
    ("base", "weight_dtype", "refused"),
    [
        ({"dtype": "float16"}, "auto", True),
        ({"dtype": None, "torch_dtype": "float16"}, "auto", True),
        ({"dtype": "bfloat16"}, "auto", False),
        ({"dtype": "bfloat16"}, "float16", True),
        ({"dtype": None}, "auto", False),
    ],
)
async def test_values_are_judged_in_the_dtype_that_serves_them(
    base: dict[str, Any], weight_dtype: str, refused: bool, configure: Configure, tmp_path: Path
) -> None:
    model_dir = write_base(tmp_path / "other", **base)
    upload = mk(layers=[0], targets=["q_proj"])
    name = next(iter(upload.tensors))
    upload = upload.with_tensors({name: upload.tensors[name].array * 1e7})
    report = await inspect(configure(model_dir=model_dir, weight_dtype=weight_dtype), upload)
    assert (report.ref is None) == refused


def test_a_base_that_cannot_be_judged_is_refused_at_start(
    configure: Configure, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedBaseError, match="float64"):
        AdapterInspector(configure(model_dir=write_base(tmp_path / "b", dtype="float64")))
