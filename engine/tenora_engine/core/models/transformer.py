"""The decoder-only transformer: one class for every supported family.

Each forward pass is over the flat tokens of one step, `[T]`, whatever mixture of prefill chunks
and decodes they come from. Products that share an input are one product (q/k/v, gate/up).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from tenora_engine.core.model_runner.forward_batch import ForwardBatch
from tenora_engine.core.models.config import ModelConfig
from tenora_engine.core.models.output_head import OutputHead
from tenora_kernels.activation import silu_mul
from tenora_kernels.attention import paged_attention, rotate_and_store
from tenora_kernels.linear import PackedLinear
from tenora_kernels.lora import LoraPlan, LoraStack, lora_add_
from tenora_kernels.norm import rms_norm
from tenora_kernels.rope import RopeRows


@dataclass(frozen=True, slots=True)
class LayerLora:
    """The active adapters of one layer, stacked per fused product; None where none applies."""

    qkv: LoraStack | None
    o: LoraStack | None
    gate_up: LoraStack | None
    down: LoraStack | None


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Keys and values of one layer: each `[num_kv_heads, num_blocks, block_size, head_dim]`."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer; those of the norms in the dtype of the activations."""

    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    qkv: PackedLinear
    o: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


def adapted(
    linear: PackedLinear, x: torch.Tensor, stack: LoraStack | None, plan: LoraPlan | None
) -> torch.Tensor:
    """`linear(x)` plus each token's own low-rank product; no LoRA work without a stack."""
    y = linear(x)
    if stack is not None and plan is not None:
        lora_add_(y, x, stack, plan)
    return y


def add_adapted_(
    y: torch.Tensor,
    linear: PackedLinear,
    x: torch.Tensor,
    stack: LoraStack | None,
    plan: LoraPlan | None,
) -> torch.Tensor:
    """`y` plus `adapted(linear, x, ...)`; in place where the product can add to its output."""
    if not linear.adds_in_place:
        return adapted(linear, x, stack, plan).add_(y)
    linear.add_(y, x)
    if stack is not None and plan is not None:
        lora_add_(y, x, stack, plan)
    return y


class Layers(Protocol):
    """What computes all layers over one cache in place of `Transformer.run_layers`."""

    def __call__(
        self, hidden: torch.Tensor, batch: ForwardBatch, lora: Sequence[LayerLora] | None
    ) -> torch.Tensor:
        """Hidden states `[N, H]` of the logit rows; may overwrite `hidden`."""
        ...


class Transformer:
    """A loaded model. Holds weights and no per-request state."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: torch.Tensor,
        layers: Sequence[DecoderLayer],
        final_norm: torch.Tensor,
        head: OutputHead,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self.head = head
        self._cos, self._sin = rope

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype that the products' weights are held in."""
        return self.head.dtype

    @property
    def layers(self) -> Sequence[DecoderLayer]:
        """The layers' weights, first layer first."""
        return self._layers

    @property
    def rope(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The cosine and sine tables: each float32 `[context_length, head_dim]`."""
        return self._cos, self._sin

    def hidden_states(
        self,
        batch: ForwardBatch,
        kv: Sequence[LayerKV],
        lora: Sequence[LayerLora] | None,
        layers: Layers | None = None,
    ) -> torch.Tensor:
        """What `head` takes: normed hidden states `[N, H]` of the rows of `batch.logit_rows`.

        `layers` is a faster twin of `run_layers` over the same cache. Mutates `kv` at the slots
        of the batch.
        """
        config = self.config
        hidden = functional.embedding(batch.token_ids, self._embedding)  # [T, H]
        hidden = hidden.to(self._final_norm.dtype)  # the activations' dtype
        if config.embedding_multiplier != 1.0:
            hidden = hidden * config.embedding_multiplier
        if layers is None:
            hidden = self.run_layers(hidden, batch, kv, lora)
        else:
            hidden = layers(hidden, batch, lora)
        return rms_norm(hidden, self._final_norm, config.rms_norm_eps)

    def run_layers(
        self,
        hidden: torch.Tensor,
        batch: ForwardBatch,
        kv: Sequence[LayerKV],
        lora: Sequence[LayerLora] | None,
    ) -> torch.Tensor:
        """Hidden states `[N, H]` of the logit rows, from embeddings `[T, H]`."""
        rope = RopeRows(self._cos, self._sin, batch.positions)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            stacks = lora[index] if lora is not None else None
            hidden = self._attend(layer, hidden, rope, batch=batch, kv=kv[index], lora=stacks)
            if index == last:
                hidden = hidden[batch.logit_rows]
            hidden = self._feed_forward(layer, hidden, batch, stacks, pruned=index == last)
        return hidden

    def _attend(
        self,
        layer: DecoderLayer,
        hidden: torch.Tensor,
        rope: RopeRows,
        *,
        batch: ForwardBatch,
        kv: LayerKV,
        lora: LayerLora | None,
    ) -> torch.Tensor:
        config = self.config
        normed = rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        qkv = adapted(layer.qkv, normed, lora.qkv if lora else None, batch.lora_plan)
        q, k, v = torch.split(qkv, list(config.qkv_sizes), dim=1)
        q = q.view(len(q), config.num_q_heads, config.head_dim)
        k = k.view(len(k), config.num_kv_heads, config.head_dim)
        v = v.view(len(v), config.num_kv_heads, config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q = rotate_and_store(
            q, k, v, rope, k_cache=kv.keys, v_cache=kv.values, slot_mapping=batch.slot_mapping
        )
        attended = paged_attention(
            q,
            kv.keys,
            kv.values,
            batch.attention,
            scale=config.attention_scale,
            sliding_window=config.sliding_window,
        ).flatten(1)  # [T, num_q_heads * head_dim]
        return self._add(hidden, layer.o, attended, lora.o if lora else None, batch.lora_plan)

    def _feed_forward(
        self,
        layer: DecoderLayer,
        hidden: torch.Tensor,
        batch: ForwardBatch,
        lora: LayerLora | None,
        *,
        pruned: bool,
    ) -> torch.Tensor:
        plan = batch.logit_lora_plan if pruned else batch.lora_plan
        normed = rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
        gate_up = adapted(layer.gate_up, normed, lora.gate_up if lora else None, plan)
        return self._add(hidden, layer.down, silu_mul(gate_up), lora.down if lora else None, plan)

    def _add(
        self,
        hidden: torch.Tensor,
        linear: PackedLinear,
        x: torch.Tensor,
        stack: LoraStack | None,
        plan: LoraPlan | None,
    ) -> torch.Tensor:
        """The residual stream after one more product; `hidden` may be reused for it."""
        if self.config.residual_multiplier == 1.0:
            return add_adapted_(hidden, linear, x, stack, plan)
        out = adapted(linear, x, stack, plan)
        return (out * self.config.residual_multiplier).add_(hidden)
