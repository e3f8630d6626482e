"""Tiny random models of every supported family, as Hugging Face folders.

The shapes are those of the adapter tests: hidden 64, 4 query and 2 key-value heads of 16, MLP
128, 4 layers, vocabulary 512.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():
    # transformers warns about optional backends that are not installed.
    warnings.simplefilter("ignore")
    import transformers

SHAPES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": (
        "LlamaConfig",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral-window": ("MistralConfig", {"sliding_window": 24}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "phi3": ("Phi3Config", {"sliding_window": None}),
    "granite": (
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
            "attention_multiplier": 0.2,
        },
    ),
}


def make_tiny_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **shapes: Any,
) -> Path:
    """Write a random model of `family` with activations of a realistic size; returns `folder`."""
    config_name, extra = FAMILIES[family]
    config = getattr(transformers, config_name)(**SHAPES | extra | shapes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0.0, 0.12)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    return folder


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The same folder through transformers, for comparison."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()
