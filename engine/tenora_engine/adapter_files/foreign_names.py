"""Recognises what a tensor is when it is no LoRA weight of the base: another trainer's format,
a variant of LoRA, a norm, a bias, a saved module. The refusal can then say what was seen."""

import re
from typing import NamedTuple


class ForeignKind(NamedTuple):
    """One recognisable kind of tensor: the problem's code, and the sentence that explains it."""

    pattern: re.Pattern[str]
    code: str
    explanation: str


def _kind(pattern: str, code: str, explanation: str) -> ForeignKind:
    return ForeignKind(re.compile(pattern), code, explanation)


SAVED_MODULE = "modules_to_save"

KINDS = (
    _kind(
        r"lora_magnitude_vector",
        "dora_unsupported",
        "are DoRA magnitudes, whatever use_dora says; DoRA is not served, train with "
        "use_dora=False",
    ),
    _kind(
        r"trainable_tokens|\.modules_to_save\.|(^|\.)(embed_tokens|lm_head)\.(base_layer\.)?weight$"
        r"|(^|\.)(score|classifier)\.(weight|bias)$",
        SAVED_MODULE,
        "are fully trained modules, which are not served; train with modules_to_save=None, save "
        "with save_embedding_layers=False, and keep the base's vocabulary",
    ),
    _kind(
        r"lora_embedding_[AB]|(^|\.)embed_tokens\.",
        "embedding_lora_unsupported",
        "are LoRA on the embedding, which is not served; leave it out of target_modules",
    ),
    _kind(
        r"(^|\.)lm_head\.",
        "head_lora_unsupported",
        "are LoRA on lm_head, which is not served; leave it out of target_modules",
    ),
    _kind(
        r"attention\.w[qkvo]\.|feed_forward\.w[123]\.",
        "foreign_format",
        "are named as mistral-finetune names them; convert the adapter to PEFT first",
    ),
    _kind(
        r"self_attention\.linear_(qkv|proj)|mlp\.linear_fc[12]|adapter\.linear_(in|out)",
        "foreign_format",
        "are named as Megatron names them; export the adapter to PEFT first",
    ),
    _kind(
        r"\.lora_[ab]$",
        "foreign_format",
        "are named as MLX names them (lora_a and lora_b, transposed); convert the adapter to PEFT "
        "first",
    ),
    _kind(
        r"lora_(up|down)\.|^lora_(unet|te)",
        "foreign_format",
        "are named as kohya's trainer names them; convert the adapter to PEFT first",
    ),
    _kind(
        r"(^|[._])(qkv_proj|gate_up_proj)\.lora_",
        "fused_projection",
        "adapt fused projections that this base does not have there; train on the base as it is "
        "served",
    ),
    _kind(
        r"norm[0-9]*\.(weight|bias)$",
        "norm_weights",
        "are weights of norms, which are not LoRA; train without norms and save again",
    ),
    _kind(
        r"\.bias$",
        "bias_unsupported",
        "are biases, whatever bias says; biases are not served, train with bias='none'",
    ),
)
"""Tried in this order: a name is of the first kind that it matches."""


def kind_of(name: str) -> ForeignKind | None:
    """What `name` is recognised as; None for a name that says nothing."""
    return next((kind for kind in KINDS if kind.pattern.search(name)), None)
