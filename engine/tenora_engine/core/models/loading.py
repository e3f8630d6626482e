"""A Hugging Face folder becomes a `Transformer`: names, fusion and packing in one place."""

from pathlib import Path

import torch

from tenora_engine.core.models.checkpoint import Checkpoint
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.output_head import OutputHead
from tenora_engine.core.models.precision import Precision
from tenora_engine.core.models.transformer import DecoderLayer, Transformer
from tenora_kernels.linear import PackedLinear
from tenora_kernels.rope import build_rope_table

CPU = torch.device("cpu")


def load_transformer(
    model_dir: Path,
    config: ModelConfig,
    precision: Precision,
    context_length: int,
    device: torch.device = CPU,
) -> Transformer:
    """Load and pack all weights; each is read once.

    Raises:
        UnsupportedModelError: a tensor is missing or has the wrong shape.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    cos, sin = build_rope_table(
        config.head_dim, context_length, config.rope_theta, config.rope_scaling
    )
    with Checkpoint(model_dir, precision, device) as weights:
        embedding = weights.read_matrix("model.embed_tokens.weight", (vocab, hidden))
        head = (
            embedding
            if config.tie_word_embeddings
            else weights.read_matrix("lm_head.weight", (vocab, hidden))
        )
        return Transformer(
            config,
            embedding=embedding,
            layers=[_load_layer(weights, config, i) for i in range(config.num_layers)],
            final_norm=weights.read("model.norm.weight", (hidden,)),
            head=_load_head(weights, head, config.logits_divisor),
            rope=(cos.to(device), sin.to(device)),
        )


def _load_head(weights: Checkpoint, matrix: torch.Tensor, divisor: float) -> OutputHead:
    # logits that are divided are not chosen from by the product's outputs: see `likeliest`
    return OutputHead(_linear(weights, matrix, None, finds_largest=divisor == 1.0), divisor)


def _load_layer(weights: Checkpoint, config: ModelConfig, index: int) -> DecoderLayer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.qkv_sizes[0]
    norm_shape = (config.head_dim,)
    return DecoderLayer(
        input_norm=weights.read(f"{prefix}.input_layernorm.weight", (hidden,)),
        post_attention_norm=weights.read(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        qkv=_load_qkv(weights, config, f"{prefix}.self_attn"),
        o=_load_linear(weights, f"{prefix}.self_attn.o_proj", (hidden, q_size), config.o_bias),
        gate_up=_load_gate_up(weights, config, f"{prefix}.mlp"),
        down=_load_linear(weights, f"{prefix}.mlp.down_proj", (hidden, inner), config.mlp_bias),
        q_norm=weights.read(f"{prefix}.self_attn.q_norm.weight", norm_shape)
        if config.qk_norm
        else None,
        k_norm=weights.read(f"{prefix}.self_attn.k_norm.weight", norm_shape)
        if config.qk_norm
        else None,
    )


def _load_linear(
    weights: Checkpoint, name: str, shape: tuple[int, int], has_bias: bool
) -> PackedLinear:
    bias = weights.read_matrix(f"{name}.bias", shape[:1]) if has_bias else None
    return _linear(weights, weights.read_matrix(f"{name}.weight", shape), bias)


def _linear(
    weights: Checkpoint,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    finds_largest: bool = False,
) -> PackedLinear:
    precision = weights.precision
    return PackedLinear(
        matrix,
        bias,
        rounds_input=precision.rounds_inputs,
        is_batch_invariant=precision.is_batch_invariant,
        rounds_to_int8=precision.rounds_to_int8,
        finds_largest=finds_largest,
        memory=weights.packed,
    )


def _load_qkv(weights: Checkpoint, config: ModelConfig, prefix: str) -> PackedLinear:
    hidden, sizes = config.hidden_size, config.qkv_sizes
    if f"{prefix}.qkv_proj.weight" in weights:
        return _load_linear(weights, f"{prefix}.qkv_proj", (sum(sizes), hidden), config.qkv_bias)
    names = [f"{prefix}.{letter}_proj" for letter in "qkv"]
    return _load_fused(weights, names, sizes, hidden, config.qkv_bias)


def _load_gate_up(weights: Checkpoint, config: ModelConfig, prefix: str) -> PackedLinear:
    hidden, inner = config.hidden_size, config.intermediate_size
    if f"{prefix}.gate_up_proj.weight" in weights:
        return _load_linear(weights, f"{prefix}.gate_up_proj", (2 * inner, hidden), config.mlp_bias)
    names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    return _load_fused(weights, names, (inner, inner), hidden, config.mlp_bias)


def _load_fused(
    weights: Checkpoint,
    names: list[str],
    sizes: tuple[int, ...],
    in_features: int,
    has_bias: bool,
) -> PackedLinear:
    """Several products of one input as one: their rows one after the other."""
    rows = [
        weights.read_matrix(f"{name}.weight", (size, in_features))
        for name, size in zip(names, sizes, strict=True)
    ]
    bias = None
    if has_bias:
        bias = torch.cat(
            [
                weights.read_matrix(f"{name}.bias", (size,))
                for name, size in zip(names, sizes, strict=True)
            ]
        )
    return _linear(weights, torch.cat(rows), bias)
