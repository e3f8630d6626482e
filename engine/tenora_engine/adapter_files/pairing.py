"""Sorts the tensors of an upload into pairs of `lora_a` and `lora_b`, or says why one fits nowhere.

Rule: every tensor in the file belongs to a module of the base, or the adapter is refused.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tenora_engine.adapter_files.findings import Findings, listed, quoted
from tenora_engine.adapter_files.foreign_names import SAVED_MODULE, ForeignKind, kind_of
from tenora_engine.adapter_files.header import Header, TensorInfo
from tenora_engine.adapter_files.shapes import BaseShapes
from tenora_engine.adapter_files.tensor_names import Half, ModuleKey, parse_name, unwrapped


@dataclass(frozen=True, slots=True)
class Pair:
    """Both halves of one module's update, as uploaded."""

    lora_a: TensorInfo
    lora_b: TensorInfo


def pair_tensors(header: Header, shapes: BaseShapes, findings: Findings) -> dict[ModuleKey, Pair]:
    """Complete pairs by module, in the order of layers; everything else goes to `findings`."""
    if not header.tensors:
        findings.problem(
            "empty_adapter",
            "The weights file holds no tensors. If training was sharded (DeepSpeed ZeRO-3, FSDP), "
            "gather the weights before saving.",
        )
        return {}
    if _refuse_empty_tensors(header.tensors, findings):
        return {}
    halves: dict[ModuleKey, dict[Half, TensorInfo]] = defaultdict(dict)
    strangers: list[TensorInfo] = []
    for tensor in header.tensors:
        parsed = parse_name(tensor.name, shapes)
        if parsed is None:
            strangers.append(tensor)
        elif parsed[1] in halves[parsed[0]]:
            _refuse_duplicate(halves[parsed[0]][parsed[1]], tensor, findings)
        else:
            halves[parsed[0]][parsed[1]] = tensor
    _refuse_strangers(strangers, shapes, bool(halves), findings)
    return _complete_pairs(halves, findings)


def _refuse_empty_tensors(tensors: Iterable[TensorInfo], findings: Findings) -> bool:
    """Whether there are any; then nothing more can be said about the rest."""
    empty = [tensor.name for tensor in tensors if tensor.num_bytes == 0]
    if empty:
        findings.problem(
            "empty_tensor",
            f"{len(empty)} tensors hold no values: {listed(empty)}. If training was sharded "
            "(DeepSpeed ZeRO-3, FSDP), gather the weights before saving.",
            empty[0],
        )
    return bool(empty)


def _refuse_duplicate(first: TensorInfo, second: TensorInfo, findings: Findings) -> None:
    findings.problem(
        "duplicate_module",
        f"Tensors {quoted(first.name)} and {quoted(second.name)} are two spellings of one weight; "
        "keep one.",
        second.name,
    )


def _complete_pairs(
    halves: dict[ModuleKey, dict[Half, TensorInfo]], findings: Findings
) -> dict[ModuleKey, Pair]:
    pairs: dict[ModuleKey, Pair] = {}
    for key in sorted(halves):
        found = halves[key]
        if len(found) == 2:
            pairs[key] = Pair(found["lora_a"], found["lora_b"])
            continue
        present = next(iter(found.values()))
        missing = "lora_B" if "lora_a" in found else "lora_A"
        findings.problem(
            "missing_half",
            f"Tensor {quoted(present.name)} has no {missing} beside it; save the adapter again.",
            present.name,
        )
    return pairs


def _refuse_strangers(
    strangers: list[TensorInfo], shapes: BaseShapes, has_matches: bool, findings: Findings
) -> None:
    by_kind: dict[ForeignKind, list[TensorInfo]] = defaultdict(list)
    unknown: list[str] = []
    for tensor in strangers:
        kind = kind_of(unwrapped(tensor.name))
        if kind is None:
            unknown.append(tensor.name)
        else:
            by_kind[kind].append(tensor)
    for kind, tensors in by_kind.items():
        _refuse_kind(kind, tensors, shapes, findings)
    if unknown and has_matches:
        findings.problem(
            "unconsumed_tensors",
            f"{len(unknown)} tensors belong to no module of the base model: {listed(unknown)}. "
            "Remove them, or train on the base as it is served.",
            unknown[0],
        )
    elif unknown:
        expected = f"base_model.model.{next(shapes.paths())}.lora_A.weight"
        findings.problem(
            "no_tensor_matched",
            f"No tensor belongs to the base model. The file has {quoted(unknown[0])}; the base "
            f"expects names such as {quoted(expected)}. Was it trained on another architecture?",
            unknown[0],
        )


def _refuse_kind(
    kind: ForeignKind, tensors: list[TensorInfo], shapes: BaseShapes, findings: Findings
) -> None:
    names = [tensor.name for tensor in tensors]
    sizes = _resized_rows(tensors, shapes) if kind.code == SAVED_MODULE else ""
    findings.problem(
        kind.code, f"Tensors {listed(names)} {kind.explanation}.{sizes}", tensors[0].name
    )


def _resized_rows(tensors: list[TensorInfo], shapes: BaseShapes) -> str:
    """Says how far saved embeddings are from the base's vocabulary, where they are."""
    for tensor in tensors:
        is_vocabulary = len(tensor.shape) == 2 and tensor.shape[1] == shapes.hidden_size
        if is_vocabulary and tensor.shape[0] > shapes.vocab_size:
            return (
                f" {quoted(tensor.name)} has {tensor.shape[0]} rows, the base's vocabulary "
                f"{shapes.vocab_size}: {tensor.shape[0] - shapes.vocab_size} too many."
            )
    return ""
