"""From a tensor's name in an upload to the module it belongs to.

Supported spellings of one module: with or without PEFT's `base_model.model.`, with or without
the adapter name `default`, and inside the wrappers of torch.compile, FSDP, activation
checkpointing and DDP. Everything else must match the base model's module path in full: a suffix
that fits is not enough.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tenora_engine.adapter_files.shapes import BaseShapes

Half = Literal["lora_a", "lora_b"]

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PEFT_PREFIX = "base_model.model."
_LORA_TENSOR = re.compile(
    r"model\.layers\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<block>[a-z_]+)\.(?P<target>[a-z_]+)"
    r"\.lora_(?P<half>[AB])(?:\.default)?\.weight"
)


@dataclass(frozen=True, slots=True, order=True)
class ModuleKey:
    """One adaptable module of the base."""

    layer: int
    target: str


def unwrapped(name: str) -> str:
    """`name` without training wrappers and without PEFT's prefix."""
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    return name.removeprefix("module.").removeprefix(_PEFT_PREFIX)


def parse_name(name: str, shapes: BaseShapes) -> tuple[ModuleKey, Half] | None:
    """The module and the half of it that `name` means; None where the base has no such module."""
    match = _LORA_TENSOR.fullmatch(unwrapped(name))
    if match is None:
        return None
    layer, target = int(match["layer"]), match["target"]
    shape = shapes.modules.get(target)
    if shape is None or shape.block != match["block"] or layer >= shapes.num_layers:
        return None
    return ModuleKey(layer, target), "lora_a" if match["half"] == "A" else "lora_b"
