"""Decides rank, scale and place of every module, or why the configuration and weights disagree."""

from dataclasses import dataclass

from tenora_engine.adapter_files.findings import Findings, listed, quoted
from tenora_engine.adapter_files.header import DTYPE_BYTES, TensorInfo
from tenora_engine.adapter_files.lora_settings import LoraSettings
from tenora_engine.adapter_files.pairing import Pair
from tenora_engine.adapter_files.shapes import BaseShapes, ModuleShape
from tenora_engine.adapter_files.tensor_names import ModuleKey


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows of an uploaded tensor, by their bytes in the uploaded file."""

    dtype: str
    shape: tuple[int, int]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedModule:
    """One canonical module: `name` is `layers.{i}.{target}`."""

    name: str
    rank: int
    scaling: float
    lora_a: Piece
    lora_b: Piece


def plan_modules(
    pairs: dict[ModuleKey, Pair],
    settings: LoraSettings,
    shapes: BaseShapes,
    max_rank: int,
    findings: Findings,
) -> tuple[PlannedModule, ...]:
    """Canonical modules of all pairs that are right; every pair that is not goes to `findings`.

    A fused projection becomes one module per part: all share `lora_a`, each takes its own rows
    of `lora_b`. That is the same product, row for row.
    """
    planned: list[PlannedModule] = []
    for key, pair in pairs.items():
        path = shapes.path_of(key.layer, key.target)
        if not _is_selected(path, pair, settings, findings):
            continue
        rank = settings.rank_of(path)
        shape = shapes.modules[key.target]
        if _fits(path, pair, shape, rank, findings) and _is_servable(
            path, rank, max_rank, findings
        ):
            planned.extend(_split(key, pair, shape, rank, settings.scaling_of(path)))
    _check_coverage(pairs, settings, shapes, findings)
    return tuple(planned)


def _is_selected(path: str, pair: Pair, settings: LoraSettings, findings: Findings) -> bool:
    field = settings.selection.field_against(path)
    if field is None:
        return True
    findings.problem(
        "outside_target_modules" if field != "layers_to_transform" else "outside_layers",
        f"Tensor {quoted(pair.lora_a.name)} adapts {path}, which {field} leaves out; PEFT would "
        "drop it. Correct the field or remove the tensor.",
        pair.lora_a.name,
    )
    return False


def _fits(path: str, pair: Pair, shape: ModuleShape, rank: int, findings: Findings) -> bool:
    found = (pair.lora_a.shape, pair.lora_b.shape)
    expected = ((rank, shape.in_features), (shape.out_features, rank))
    if found == expected:
        return True
    other_rank = pair.lora_a.shape[0] if len(pair.lora_a.shape) == 2 else -1
    if found == ((other_rank, shape.in_features), (shape.out_features, other_rank)):
        findings.problem(
            "rank_mismatch",
            f"{path} has rank {other_rank} in the weights but {rank} in the configuration (r and "
            "rank_pattern); upload the configuration that the weights were trained with.",
            pair.lora_a.name,
        )
        return False
    for tensor, wanted in zip((pair.lora_a, pair.lora_b), expected, strict=True):
        if tensor.shape != wanted:
            _refuse_shape(tensor, wanted, findings)
    return False


def _refuse_shape(tensor: TensorInfo, wanted: tuple[int, int], findings: Findings) -> None:
    hint = "it was trained on a base of other sizes, or saved with lora_A and lora_B exchanged"
    if tensor.shape == wanted[::-1]:
        hint = "it is transposed"
    findings.problem(
        "shape_mismatch",
        f"Tensor {quoted(tensor.name)} has shape {list(tensor.shape)}, expected {list(wanted)}: "
        f"{hint}.",
        tensor.name,
    )


def _is_servable(path: str, rank: int, max_rank: int, findings: Findings) -> bool:
    if rank <= max_rank:
        return True
    findings.problem(
        "rank_too_large",
        f"{path} has rank {rank}; this server serves ranks up to {max_rank}. Train with a smaller "
        "r or rank_pattern.",
        path,
    )
    return False


def _split(
    key: ModuleKey, pair: Pair, shape: ModuleShape, rank: int, scaling: float
) -> list[PlannedModule]:
    modules = []
    offset = pair.lora_b.offset
    for target, rows in shape.parts:
        num_bytes = rows * rank * DTYPE_BYTES[pair.lora_b.dtype]
        modules.append(
            PlannedModule(
                name=f"layers.{key.layer}.{target}",
                rank=rank,
                scaling=scaling,
                lora_a=Piece(
                    pair.lora_a.dtype,
                    (rank, shape.in_features),
                    pair.lora_a.offset,
                    pair.lora_a.num_bytes,
                ),
                lora_b=Piece(pair.lora_b.dtype, (rows, rank), offset, num_bytes),
            )
        )
        offset += num_bytes
    return modules


def _check_coverage(
    pairs: dict[ModuleKey, Pair], settings: LoraSettings, shapes: BaseShapes, findings: Findings
) -> None:
    """Modules that the configuration selects but the file has no tensors for."""
    present = {shapes.path_of(key.layer, key.target) for key in pairs}
    selected = [p for p in shapes.paths() if settings.selection.field_against(p) is None]
    if not selected:
        findings.problem(
            "no_target_matched",
            "target_modules matches no module of the base model; upload the configuration that "
            "the weights were trained with.",
            "target_modules",
        )
    absent = [path for path in selected if path not in present]
    if not absent or not pairs:
        return
    if settings.has_random_effect:
        findings.problem(
            "missing_tensors",
            f"{len(absent)} of {len(selected)} selected modules have no tensors, and under this "
            f"init_lora_weights PEFT would fill them at random: {listed(absent)}. Narrow "
            "target_modules to what was trained.",
            "target_modules",
        )
    else:
        findings.warning(
            "modules_without_tensors",
            f"{len(absent)} of {len(selected)} modules that target_modules selects have no tensors "
            f"and answer as the base: {listed(absent)}.",
            "target_modules",
        )
