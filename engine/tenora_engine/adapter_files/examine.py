"""The whole judgement of one upload, from two files to a report. Pure: no network, no torch.

`child.py` runs it in a process with limits; tests call it directly.
"""

from pathlib import Path

import msgspec

from tenora_engine.adapter_files.canonical import write_canonical
from tenora_engine.adapter_files.config_fields import AdapterConfig, read_config
from tenora_engine.adapter_files.findings import Findings, quoted
from tenora_engine.adapter_files.header import Header, HeaderError, read_header
from tenora_engine.adapter_files.pairing import Pair, pair_tensors
from tenora_engine.adapter_files.planning import PlannedModule, plan_modules
from tenora_engine.adapter_files.shapes import BaseShapes
from tenora_engine.adapter_files.tensor_names import ModuleKey
from tenora_engine.adapter_files.values import ServingDtype, check_values
from tenora_engine.protocol.messages import AdapterRef, AdapterReport


class InspectionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to examine. `canonical_path` must not exist; it is written on acceptance only."""

    config_path: str
    weights_path: str
    canonical_path: str
    shapes: BaseShapes
    base_model: str
    serving_dtype: ServingDtype
    max_rank: int


def examine(job: InspectionJob) -> AdapterReport:
    """Judge the upload; every problem of both files is in the report.

    On acceptance the canonical file is at `job.canonical_path` and `ref` holds its digest.
    """
    findings = Findings()
    config = read_config(Path(job.config_path).read_bytes(), findings)
    _warn_about_base(config, job.base_model, findings)
    pairs: dict[ModuleKey, Pair] = {}
    modules: tuple[PlannedModule, ...] = ()
    header = _header(job, findings)
    if header is not None:
        pairs = pair_tensors(header, job.shapes, findings)
        check_values(Path(job.weights_path), pairs, job.serving_dtype, findings)
        if config.settings is not None:
            modules = plan_modules(pairs, config.settings, job.shapes, job.max_rank, findings)
            _warn_about_zero_scaling(modules, findings)
    return _report(job, config, pairs, modules, findings)


def _header(job: InspectionJob, findings: Findings) -> Header | None:
    try:
        return read_header(Path(job.weights_path))
    except HeaderError as error:
        findings.problem(error.code, error.message, error.field)
        return None


def _warn_about_base(config: AdapterConfig, base_model: str, findings: Findings) -> None:
    """Names prove nothing, so a difference is shown and refuses nothing; nothing is fetched."""
    declared = config.declared_base
    if declared is None:
        message = "The configuration does not say which base the adapter was trained on"
    elif _last_part(declared) != _last_part(base_model):
        message = f"The adapter declares the base {quoted(declared)}"
    elif config.declared_revision not in (None, "main"):
        message = f"The adapter declares revision {quoted(config.declared_revision)} of its base"
    else:
        return
    findings.warning(
        "base_name_differs",
        f"{message}; it is served on {quoted(base_model)}. Shapes fit, but only the probe and your "
        "own evaluation can tell whether it is the same model.",
        "base_model_name_or_path",
    )


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()


def _warn_about_zero_scaling(modules: tuple[PlannedModule, ...], findings: Findings) -> None:
    idle = [module.name for module in modules if module.scaling == 0]
    if idle:
        findings.warning(
            "zero_scaling",
            f"lora_alpha is 0 for {len(idle)} of {len(modules)} modules, so they have no effect; "
            "they are served exactly so.",
            "lora_alpha",
        )


def _report(
    job: InspectionJob,
    config: AdapterConfig,
    pairs: dict[ModuleKey, Pair],
    modules: tuple[PlannedModule, ...],
    findings: Findings,
) -> AdapterReport:
    digest = None
    size_bytes = Path(job.weights_path).stat().st_size
    if not findings.has_problems:
        target = Path(job.canonical_path)
        digest = write_canonical(Path(job.weights_path), modules, target)
        size_bytes = target.stat().st_size
    targets = {key.target for key in pairs}
    return AdapterReport(
        ref=None if digest is None else AdapterRef(digest=digest),
        problems=findings.problems(),
        warnings=findings.warnings(),
        size_bytes=size_bytes,
        num_parameters=sum(_num_values(pair) for pair in pairs.values()),
        max_rank=max((module.rank for module in modules), default=0),
        num_modules=len(pairs),
        target_modules=tuple(name for name in job.shapes.modules if name in targets),
        declared_base=config.declared_base,
        scalings=tuple(sorted({float(module.scaling) for module in modules})),
    )


def _num_values(pair: Pair) -> int:
    return sum(
        rows * columns
        for rows, columns in (
            shape for shape in (pair.lora_a.shape, pair.lora_b.shape) if len(shape) == 2
        )
    )
