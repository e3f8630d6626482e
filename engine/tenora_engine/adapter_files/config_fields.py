"""Reads `adapter_config.json`: every field is handled, ignored for a reason, or refused by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenora_engine.adapter_files import field_policy
from tenora_engine.adapter_files.findings import Findings, printable, quoted
from tenora_engine.adapter_files.lora_settings import LoraSettings, read_settings

MAX_CONFIG_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`settings` is None where a field needed to place the weights is missing or wrong."""

    settings: LoraSettings | None = None
    declared_base: str | None = None
    declared_revision: str | None = None


def read_config(raw: bytes, findings: Findings) -> AdapterConfig:
    """Read the file's bytes; everything wrong goes to `findings`, all at once."""
    fields = _load(raw, findings)
    if fields is None:
        return AdapterConfig()
    _check_peft_type(fields, findings)
    _refuse_by_policy(fields, findings)
    _check_bias(fields, findings)
    _check_init(fields, findings)
    _note_harmless(fields, findings)
    return AdapterConfig(
        settings=read_settings(fields, findings),
        declared_base=_text(fields, "base_model_name_or_path"),
        declared_revision=_text(fields, "revision"),
    )


class _DuplicateKeyError(ValueError):
    """The same key twice in one object: readers disagree on which one counts."""


def _load(raw: bytes, findings: Findings) -> Mapping[str, Any] | None:
    if len(raw) > MAX_CONFIG_BYTES:
        findings.problem(
            "config_too_large",
            f"adapter_config.json has more than {MAX_CONFIG_BYTES} bytes; upload the file that "
            "PEFT wrote.",
        )
        return None
    try:
        fields = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys)
    except _DuplicateKeyError as error:
        findings.problem("config_invalid", f"adapter_config.json names {error} twice; remove one.")
    except (ValueError, RecursionError):
        findings.problem(
            "config_invalid", "adapter_config.json is not JSON; upload the file that PEFT wrote."
        )
    else:
        if isinstance(fields, dict):
            return fields
        findings.problem("config_invalid", "adapter_config.json must hold one JSON object.")
    return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _DuplicateKeyError(quoted(key))
        made[key] = value
    return made


def _check_peft_type(fields: Mapping[str, Any], findings: Findings) -> None:
    peft_type = fields.get("peft_type")
    if peft_type != "LORA":
        findings.problem(
            "peft_type_unsupported",
            f"peft_type is {quoted(peft_type)}; only 'LORA' adapters are served.",
            "peft_type",
        )


def _refuse_by_policy(fields: Mapping[str, Any], findings: Findings) -> None:
    for name, value in fields.items():
        if name in field_policy.HANDLED or name in field_policy.IGNORED:
            continue
        if field_policy.is_neutral(value):
            continue
        if name in field_policy.REFUSED:
            code, advice = field_policy.REFUSED[name]
            findings.problem(code, f"{name} is {quoted(value)}: {advice}.", name)
        else:
            findings.problem(
                "unknown_semantics",
                f"Field {quoted(name)} is not known here and is {quoted(value)}: it may change "
                "what the adapter computes. If it does not, remove it or set it to null.",
                name,
            )


def _check_bias(fields: Mapping[str, Any], findings: Findings) -> None:
    bias = fields.get("bias")
    if bias is not None and bias != "none":
        findings.problem(
            "bias_unsupported",
            f"bias is {quoted(bias)}: biases are not served; train with bias='none'.",
            "bias",
        )


def _check_init(fields: Mapping[str, Any], findings: Findings) -> None:
    init = fields.get("init_lora_weights")
    if init is None or isinstance(init, bool):
        return
    name = init.lower() if isinstance(init, str) else ""
    if name.startswith(field_policy.INIT_CHANGING_BASE):
        findings.problem(
            "base_modified_init",
            f"init_lora_weights is {quoted(init)}: the adapter fits a base whose weights were "
            "changed when its training began. Convert it: call save_pretrained with "
            "path_initial_model_for_weight_conversion, then upload the result.",
            "init_lora_weights",
        )
    elif name not in field_policy.INIT_KEEPING_BASE:
        findings.problem(
            "unknown_semantics",
            f"init_lora_weights is {quoted(init)}, which is not known here: it may change the "
            "base's weights. Train with init_lora_weights=True.",
            "init_lora_weights",
        )


def _note_harmless(fields: Mapping[str, Any], findings: Findings) -> None:
    if fields.get("fan_in_fan_out"):
        findings.warning(
            "fan_in_fan_out_ignored",
            "fan_in_fan_out has no effect on this base: all its projections are linear modules.",
            "fan_in_fan_out",
        )
    task_type = fields.get("task_type")
    if task_type not in (None, "CAUSAL_LM"):
        findings.warning(
            "other_task_type",
            f"task_type is {quoted(task_type)}; the adapter is served for text generation.",
            "task_type",
        )


def _text(fields: Mapping[str, Any], field: str) -> str | None:
    value = fields.get(field)
    return printable(value) if isinstance(value, str) and value else None
