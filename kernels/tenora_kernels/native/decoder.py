"""All layers of a Llama-shaped decoder in one call of C++: the same functions, the same bits.

Python calls the operators one after the other, a dozen for each layer; on a small model those
calls cost as much as a tenth of a decode step. Here a step is one call, and what the layers share
is said once. `engine`'s transformer is the slow twin.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_kernels.attention.batch import AttentionBatch
from tenora_kernels.errors import DtypeError
from tenora_kernels.linear import PackedLinear
from tenora_kernels.lora.native import NativeStack, packed_stack
from tenora_kernels.lora.plan import LoraPlan
from tenora_kernels.lora.stack import LoraStack
from tenora_kernels.native import library
from tenora_kernels.native.library import AttentionArgs, LayerLora, LoraRows, RopeArgs
from tenora_kernels.rope.rows import RopeRows


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: norms float32 [H] and [head_dim] or None, products of the native backend."""

    input_norm: Tensor
    post_attention_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    qkv: PackedLinear
    o: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and rules that all layers share."""

    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    norm_eps: float
    attention_scale: float
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class StepRows:
    """The tokens of one step: positions and tables, slots, sequences, and rows wanted at the end.

    slot_mapping, logit_rows: int64. The plans map all tokens, and the logit rows alone.
    """

    rope: RopeRows
    slot_mapping: Tensor
    attention: AttentionBatch
    logit_rows: Tensor
    lora_plan: LoraPlan | None
    logit_lora_plan: LoraPlan | None


# the stacks of one layer, in the order of `LayerLora`
Stacks = tuple[LoraStack | None, LoraStack | None, LoraStack | None, LoraStack | None]


class LoraTables:
    """The active adapters of all layers as C++ reads them; valid for as long as it lives."""

    def __init__(self, layers: Sequence[Stacks]) -> None:
        self._stacks: list[NativeStack] = []
        self._layers = (LayerLora * len(layers))(
            *(LayerLora(*(self._table(stack) for stack in stacks)) for stacks in layers)
        )
        self.address = ctypes.addressof(self._layers)

    def _table(self, stack: LoraStack | None) -> int | None:
        if stack is None:
            return None
        native = packed_stack(stack)
        self._stacks.append(native)
        return None if native.is_empty else native.table.data_ptr()


class NativeDecoder:
    """The layers of one model over one KV cache."""

    def __init__(
        self,
        shape: DecoderShape,
        layers: Sequence[LayerWeights],
        caches: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        """Take the layers and their `(k_cache, v_cache)`; see `library.kv_cache`.

        Raises:
            DtypeError, ShapeError: weights or caches that the native kernels do not read.
        """
        self._shape = shape
        self._keeps_alive = (tuple(layers), tuple(caches))
        self._num_layers = len(layers)
        self._layers = (library.DecoderLayer * len(layers))(
            *(_layer(weights, *cache) for weights, cache in zip(layers, caches, strict=True))
        )
        self._run = library.library().tn_decode

    def run(self, hidden: Tensor, rows: StepRows, lora: LoraTables | None) -> Tensor:
        """Return the last hidden states of `rows.logit_rows`: float32 [N, H], before the norm.

        Args: hidden float32 [T, H], the embeddings, contiguous.
        Mutates: hidden, and the caches at the step's slots.
        """
        out = torch.empty(rows.logit_rows.shape[0], self._shape.hidden_size)
        step = library.DecoderStep(
            hidden=hidden.data_ptr(),
            tokens=hidden.shape[0],
            hidden_size=self._shape.hidden_size,
            intermediate_size=self._shape.intermediate_size,
            logit_rows=rows.logit_rows.data_ptr(),
            num_logit_rows=rows.logit_rows.shape[0],
            out=out.data_ptr(),
            norm_eps=self._shape.norm_eps,
            rope=self._rope(rows),
            attention=self._attention(rows.attention),
            lora=_lora_rows(rows.lora_plan),
            logit_lora=_lora_rows(rows.logit_lora_plan),
            layer_lora=lora.address if lora is not None else None,
        )
        self._run(ctypes.addressof(self._layers), self._num_layers, ctypes.addressof(step))
        return out

    def _rope(self, rows: StepRows) -> RopeArgs:
        return RopeArgs(
            q_heads=self._shape.num_q_heads,
            cos=rows.rope.cos.data_ptr(),
            sin=rows.rope.sin.data_ptr(),
            positions=rows.rope.positions.data_ptr(),
            slots=rows.slot_mapping.data_ptr(),
        )

    def _attention(self, batch: AttentionBatch) -> AttentionArgs:
        starts, lens, blocks, table_starts = batch.flat
        return AttentionArgs(
            q_heads=self._shape.num_q_heads,
            num_sequences=lens.shape[0],
            query_starts=starts.data_ptr(),
            seq_lens=lens.data_ptr(),
            blocks=blocks.data_ptr(),
            table_starts=table_starts.data_ptr(),
            scale=self._shape.attention_scale,
            window=self._shape.sliding_window or 0,
        )


def _lora_rows(plan: LoraPlan | None) -> LoraRows:
    if plan is None or plan.is_base_only:
        return LoraRows()
    segments, rows = plan.segments
    return LoraRows(segments.data_ptr(), segments.shape[0], rows.data_ptr())


def _layer(weights: LayerWeights, k_cache: Tensor, v_cache: Tensor) -> library.DecoderLayer:
    products = (weights.qkv, weights.o, weights.gate_up, weights.down)
    natives = [product.native for product in products]
    norms = (weights.input_norm, weights.post_attention_norm, weights.q_norm, weights.k_norm)
    if any(t is not None and (t.dtype != torch.float32 or not t.is_contiguous()) for t in norms):
        raise DtypeError("the native decoder takes contiguous float32 norms")
    return library.DecoderLayer(
        *(None if norm is None else norm.data_ptr() for norm in norms),
        *(_descriptor(native) for native in natives),
        library.kv_cache(k_cache, v_cache),
    )


def _descriptor(native: object) -> library.Product:
    descriptor = getattr(native, "descriptor", None)
    if not isinstance(descriptor, library.Product):
        raise DtypeError("a weight was not packed by the native backend; bind it before loading")
    return descriptor
