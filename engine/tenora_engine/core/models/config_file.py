"""A Hugging Face `config.json` becomes a `ModelConfig`, or is refused by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.errors import UnsupportedModelError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "GraniteForCausalLM": "granite",
}


def read_model_config(model_dir: Path) -> ModelConfig:
    """Read `config.json` of a Hugging Face model folder.

    Raises:
        UnsupportedModelError: the architecture or a field that changes the result is not known.
    """
    path = model_dir / "config.json"
    if not path.is_file():
        raise UnsupportedModelError(
            f"{path} does not exist: give --model a Hugging Face model folder"
        )
    fields = json.loads(path.read_text())
    architecture = (fields.get("architectures") or ["(none)"])[0]
    family = ARCHITECTURES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"architecture {architecture} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    _refuse_unknown_activation(fields)
    return _build(family, fields)


def _refuse_unknown_activation(fields: Mapping[str, Any]) -> None:
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"hidden_act {activation!r} is not supported; supported: silu")
    if fields.get("quantization_config"):
        raise UnsupportedModelError("quantized checkpoints are not supported; use float weights")
    if float(fields.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1.0 is not supported")


def _rope(fields: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Theta and scaling, from the old (`rope_theta`) and the new (`rope_parameters`) spelling."""
    parameters = dict(fields.get("rope_parameters") or {})
    scaling = dict(fields.get("rope_scaling") or parameters)
    theta = float(parameters.get("rope_theta") or fields.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, None
    scaling["rope_type"] = kind
    scaling.setdefault(
        "original_max_position_embeddings", fields.get("original_max_position_embeddings")
    )
    return theta, scaling


def _sliding_window(family: str, fields: Mapping[str, Any]) -> int | None:
    window = fields.get("sliding_window")
    if window is None or (family in {"qwen2", "qwen3"} and not fields.get("use_sliding_window")):
        return None
    kinds = set(fields.get("layer_types") or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if len(kinds) > 1 or (family in {"qwen2", "qwen3"} and fields.get("max_window_layers")):
        raise UnsupportedModelError("layers that alternate sliding and full attention")
    return int(window)


def _build(family: str, fields: Mapping[str, Any]) -> ModelConfig:
    heads = int(fields["num_attention_heads"])
    hidden = int(fields["hidden_size"])
    head_dim = int(fields.get("head_dim") or hidden // heads)
    theta, scaling = _rope(fields)
    attention_bias = bool(fields.get("attention_bias", False))
    granite = family == "granite"
    return ModelConfig(
        family=family,
        vocab_size=int(fields["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(fields["intermediate_size"]),
        num_layers=int(fields["num_hidden_layers"]),
        num_q_heads=heads,
        num_kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        context_length=int(fields["max_position_embeddings"]),
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or family == "qwen2",
        o_bias=attention_bias and family in {"llama", "granite", "qwen3"},
        mlp_bias=bool(fields.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(family, fields),
        attention_scale=float(fields["attention_multiplier"]) if granite else head_dim**-0.5,
        embedding_multiplier=float(fields["embedding_multiplier"]) if granite else 1.0,
        residual_multiplier=float(fields["residual_multiplier"]) if granite else 1.0,
        logits_divisor=float(fields["logits_scaling"]) if granite else 1.0,
    )
