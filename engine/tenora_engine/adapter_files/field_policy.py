"""What each field of `adapter_config.json` means to us: read, ignored for a reason, or refused.

A field in none of these tables is refused unless it is null, false or empty: a field that a
newer PEFT adds may change the result, and nobody would notice.
"""

from typing import Any

HANDLED = frozenset(
    {
        "peft_type",
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "fan_in_fan_out",
        "bias",
        "init_lora_weights",
        "base_model_name_or_path",
        "revision",
        "task_type",
    }
)
"""Fields whose value `config_fields` reads."""

IGNORED = {
    "peft_version": "says who wrote the file",
    "auto_mapping": "names the Python classes of the training script",
    "inference_mode": "freezes weights in training",
    "lora_dropout": "acts in training only",
    "runtime_config": "says where the trainer kept its tensors",
    "megatron_core": "has a value in every file and acts only beside megatron_config",
    "qalora_group_size": "has a value in every file and acts only beside use_qalora",
    "loftq_config": "shapes the start of training; init_lora_weights says whether it was used",
    "eva_config": "shapes the start of training",
    "corda_config": "shapes the start of training; init_lora_weights says whether it was used",
    "lora_ga_config": "shapes the start of training; init_lora_weights says whether it was used",
    "velora_config": "changes the backward pass only",
    "ensure_weight_tying": "acts only on saved modules and embeddings, which are refused",
}
"""Fields that may hold anything, and why they do not change what is computed."""

REFUSED = {
    "use_dora": ("dora_unsupported", "DoRA is not served; train with use_dora=False"),
    "lora_bias": ("bias_unsupported", "biases are not served; train with lora_bias=False"),
    "modules_to_save": (
        "modules_to_save",
        "fully trained modules are not served; train with modules_to_save=None",
    ),
    "trainable_token_indices": (
        "modules_to_save",
        "trained token embeddings are not served; train with trainable_token_indices=None",
    ),
    "target_parameters": (
        "target_parameters_unsupported",
        "LoRA on bare parameters is not served; use target_modules",
    ),
    "layer_replication": (
        "layer_replication_unsupported",
        "the served base has its own layers only; train without layer_replication",
    ),
    "use_qalora": ("qalora_unsupported", "QALoRA is not served; train with use_qalora=False"),
    "alora_invocation_tokens": (
        "alora_unsupported",
        "activated LoRA is not served; train with alora_invocation_tokens=None",
    ),
    "use_bdlora": ("variant_unsupported", "block-diagonal LoRA is not served; train plain LoRA"),
    "arrow_config": ("variant_unsupported", "Arrow routing is not served; train plain LoRA"),
    "kasa_config": (
        "base_modified_init",
        "KaSA truncates the base's weights, which all adapters share here; train plain LoRA",
    ),
    "monteclora_config": (
        "variant_unsupported",
        "Monte Carlo LoRA is not served; train plain LoRA",
    ),
    "megatron_config": (
        "variant_unsupported",
        "Megatron's parallel layers are not served; export the adapter to PEFT",
    ),
}
"""Fields that change the result in a way not served: the problem's code and what to do."""

INIT_KEEPING_BASE = frozenset({"gaussian", "eva", "orthogonal", "mica"})
"""`init_lora_weights` that leave the base's weights as they are."""

INIT_CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Starts of `init_lora_weights` that subtract from or replace the base's weights."""

INIT_RANDOM_EFFECT = frozenset({"orthogonal"})
"""`init_lora_weights` (beside false) under which an untrained module already has an effect."""


def is_neutral(value: Any) -> bool:
    """Whether a field with this value is as good as absent: null, false or empty."""
    return value is None or value is False or value in ({}, [])
