"""Which modules of the base model an adapter may change, by name and shape."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

SEPARATE_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "granite"})
"""Bases whose q, k, v, gate and up projections are modules of their own."""

FUSED_MODEL_TYPES = frozenset({"phi3"})
"""Bases that keep q, k and v in `qkv_proj`, gate and up in `gate_up_proj`."""


class UnsupportedBaseError(ValueError):
    """The base model's layout is not known, so no adapter for it can be judged."""


class ModuleShape(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of adaptable module.

    `parts` names the canonical targets that its output rows hold, in order, with their sizes:
    one for a plain projection, several for a fused one.
    """

    block: str
    in_features: int
    parts: tuple[tuple[str, int], ...]

    @property
    def out_features(self) -> int:
        """Output rows of the whole module."""
        return sum(rows for _, rows in self.parts)


class BaseShapes(msgspec.Struct, frozen=True, kw_only=True):
    """Adaptable modules of one base model, by the last part of their name."""

    modules: dict[str, ModuleShape]
    num_layers: int
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "BaseShapes":
        """Read the fields of a Hugging Face `config.json`.

        Raises:
            UnsupportedBaseError: the model type is unknown or a field is missing.
        """
        model_type = config.get("model_type")
        if model_type not in SEPARATE_MODEL_TYPES | FUSED_MODEL_TYPES:
            supported = ", ".join(sorted(SEPARATE_MODEL_TYPES | FUSED_MODEL_TYPES))
            raise UnsupportedBaseError(
                f"adapters for model type {model_type!r} are not supported; supported: {supported}"
            )
        try:
            modules = _modules(config, fused=model_type in FUSED_MODEL_TYPES)
            return cls(
                modules=modules,
                num_layers=int(config["num_hidden_layers"]),
                hidden_size=int(config["hidden_size"]),
                vocab_size=int(config["vocab_size"]),
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise UnsupportedBaseError(f"the base's config.json lacks {error}") from error

    def path_of(self, layer: int, target: str) -> str:
        """The module's full name as PEFT sees it in the causal language model."""
        return f"model.layers.{layer}.{self.modules[target].block}.{target}"

    def paths(self) -> Iterator[str]:
        """Full names of all adaptable modules, layer by layer."""
        for layer in range(self.num_layers):
            for target in self.modules:
                yield self.path_of(layer, target)


def _modules(config: Mapping[str, Any], *, fused: bool) -> dict[str, ModuleShape]:
    hidden = int(config["hidden_size"])
    inner = int(config["intermediate_size"])
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    q_size = heads * head_dim
    kv_size = int(config.get("num_key_value_heads") or heads) * head_dim
    qkv = (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size))
    gate_up = (("gate_proj", inner), ("up_proj", inner))
    if fused:
        modules = {
            "qkv_proj": ModuleShape(block="self_attn", in_features=hidden, parts=qkv),
            "gate_up_proj": ModuleShape(block="mlp", in_features=hidden, parts=gate_up),
        }
    else:
        modules = {
            part[0]: ModuleShape(block=block, in_features=hidden, parts=(part,))
            for block, parts in (("self_attn", qkv), ("mlp", gate_up))
            for part in parts
        }
    modules["o_proj"] = ModuleShape(
        block="self_attn", in_features=q_size, parts=(("o_proj", hidden),)
    )
    modules["down_proj"] = ModuleShape(
        block="mlp", in_features=inner, parts=(("down_proj", hidden),)
    )
    return modules
