"""A transformer's layers as one call of the native kernels, where that model allows it."""

from collections.abc import Sequence

import torch

from tenora_engine.core.model_runner.forward_batch import ForwardBatch
from tenora_engine.core.models.transformer import LayerKV, LayerLora, Transformer
from tenora_kernels.dispatch import active_backend
from tenora_kernels.native.decoder import (
    DecoderShape,
    LayerWeights,
    LoraTables,
    NativeDecoder,
    StepRows,
)
from tenora_kernels.rope import RopeRows


class NativeLayers:
    """The twin of `Transformer.run_layers` over one KV cache, bit for bit."""

    def __init__(self, model: Transformer, kv: Sequence[LayerKV]) -> None:
        config = model.config
        self._rope = model.rope
        self._decoder = NativeDecoder(
            DecoderShape(
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_q_heads=config.num_q_heads,
                norm_eps=config.rms_norm_eps,
                attention_scale=config.attention_scale,
                sliding_window=config.sliding_window,
            ),
            [
                LayerWeights(
                    layer.input_norm,
                    layer.post_attention_norm,
                    layer.q_norm,
                    layer.k_norm,
                    layer.qkv,
                    layer.o,
                    layer.gate_up,
                    layer.down,
                )
                for layer in model.layers
            ],
            [(layer.keys, layer.values) for layer in kv],
        )
        self._lora: Sequence[LayerLora] | None = None
        self._tables: LoraTables | None = None

    def __call__(
        self, hidden: torch.Tensor, batch: ForwardBatch, lora: Sequence[LayerLora] | None
    ) -> torch.Tensor:
        """Hidden states `[N, H]` of the logit rows. Mutates `hidden` and the cache."""
        rows = StepRows(
            RopeRows(*self._rope, batch.positions),
            batch.slot_mapping,
            batch.attention,
            batch.logit_rows,
            batch.lora_plan,
            batch.logit_lora_plan,
        )
        return self._decoder.run(hidden, rows, self._tables_of(lora))

    def _tables_of(self, lora: Sequence[LayerLora] | None) -> LoraTables | None:
        """The adapters' tables, made again only when the active set has changed."""
        if lora is not self._lora:
            self._lora = lora
            self._tables = None
            if lora is not None:
                self._tables = LoraTables([(s.qkv, s.o, s.gate_up, s.down) for s in lora])
        return self._tables


def create_native_layers(model: Transformer, kv: Sequence[LayerKV]) -> NativeLayers | None:
    """The layers in C++, or None where the backend is another or the model needs what it lacks."""
    is_plain = model.config.residual_multiplier == 1.0
    is_float32 = model.layers[0].input_norm.dtype == torch.float32
    is_native = all(
        product.native is not None
        for layer in model.layers
        for product in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    if active_backend() == "native" and is_plain and is_float32 and is_native:
        return NativeLayers(model, kv)
    return None
