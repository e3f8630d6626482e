"""A Llama of given shapes with random weights, and random adapters, made on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_check.shapes import Shapes
from tenora_engine.core.adapters.weights import FUSED_TARGETS, AdapterWeights
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.output_head import OutputHead
from tenora_engine.core.models.transformer import DecoderLayer, Transformer
from tenora_kernels.linear import PackedLinear
from tenora_kernels.lora import LoraModule, LoraSlice
from tenora_kernels.rope import build_rope_table


def model_config(shapes: Shapes) -> ModelConfig:
    """Llama 3's constants with these shapes."""
    return ModelConfig(
        family="llama",
        vocab_size=shapes.vocab_size,
        hidden_size=shapes.hidden_size,
        intermediate_size=shapes.intermediate_size,
        num_layers=shapes.num_layers,
        num_q_heads=shapes.num_q_heads,
        num_kv_heads=shapes.num_kv_heads,
        head_dim=shapes.head_dim,
        context_length=8192,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        attention_scale=shapes.head_dim**-0.5,
    )


def random_transformer(shapes: Shapes, device: torch.device) -> Transformer:
    """Weights whose products keep the size of their inputs."""
    torch.manual_seed(0)

    def draw(*shape: int) -> Tensor:
        weight = torch.empty(*shape, dtype=shapes.dtype, device=device)
        return weight.normal_(0.0, shape[-1] ** -0.5)

    def ones() -> Tensor:
        return torch.ones(shapes.hidden_size, dtype=shapes.dtype, device=device)

    def product(name: str) -> PackedLinear:
        in_features, slices = shapes.modules[name]
        return PackedLinear(draw(sum(slices), in_features))

    layers = [
        DecoderLayer(
            input_norm=ones(),
            post_attention_norm=ones(),
            qkv=product("qkv"),
            o=product("o"),
            gate_up=product("gate_up"),
            down=product("down"),
            q_norm=None,
            k_norm=None,
        )
        for _ in range(shapes.num_layers)
    ]
    config = model_config(shapes)
    rope = build_rope_table(config.head_dim, config.context_length, config.rope_theta)
    return Transformer(
        config,
        embedding=draw(shapes.vocab_size, shapes.hidden_size) * shapes.hidden_size**0.5,
        layers=layers,
        final_norm=ones(),
        head=OutputHead(PackedLinear(draw(shapes.vocab_size, shapes.hidden_size)), 1.0),
        rope=(rope[0].to(device), rope[1].to(device)),
    )


def random_adapter(
    shapes: Shapes, rank: int, device: torch.device, *, seed: int, strength: float = 0.5
) -> AdapterWeights:
    """One adapter of one rank on all seven projections."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(rows: int, columns: int) -> Tensor:
        factor = torch.empty(rows, columns, dtype=shapes.dtype, device=device)
        return factor.normal_(0.0, columns**-0.5, generator=generator)

    def module(in_features: int, slices: Sequence[int]) -> LoraModule | None:
        return LoraModule(
            tuple(LoraSlice(draw(rank, in_features), draw(n, rank), strength) for n in slices)
        )

    layers = tuple(
        {name: module(*shapes.modules[name]) for name in FUSED_TARGETS}
        for _ in range(shapes.num_layers)
    )
    per_rank = sum(
        len(slices) * size_in + sum(slices) for size_in, slices in shapes.modules.values()
    )
    return AdapterWeights(
        digest=f"random-{seed}",
        layers=layers,
        size_bytes=shapes.num_layers * per_rank * rank * shapes.dtype.itemsize,
        total_rank=rank * shapes.num_layers * sum(len(s) for _, s in shapes.modules.values()),
    )
