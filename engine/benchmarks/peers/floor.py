"""The least time that the workload needs on this machine: bytes to read, operations to run.

A phase takes at least

    max(bytes / read_bytes_per_s, flops / flops_per_s)

with, for L layers, hidden size h, q and kv features, inner size i, vocabulary V, element size e:

    layers  = L (h (q + 2 kv) + q h + 3 h i)          parameters of all projections
    head    = V h
    decode step of `batch` sequences, each with `context` tokens so far:
      bytes = e (layers + head) + e batch context 2 L kv
      flops = batch (2 (layers + head) + 4 L q context)
    prefill of `prompts` prompts of n tokens each:
      bytes = e (layers + head)
      flops = prompts (2 layers n + 2 head + 4 L q n (n + 1) / 2)

Rates are those that this machine reached in the same run, for one large product and for reading
more memory than its caches hold. Norms, rotary embeddings and sampling are left out. An adapter
adds operations that this floor of the base model does not have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-style decoder."""

    num_layers: int
    hidden: int
    inner: int
    q: int
    kv: int
    vocab: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """From a Hugging Face `config.json`."""
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        return cls(
            num_layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            inner=config["intermediate_size"],
            q=heads * head_dim,
            kv=config["num_key_value_heads"] * head_dim,
            vocab=config["vocab_size"],
        )

    @property
    def layers(self) -> int:
        """Parameters of all projections of all layers."""
        attention = self.hidden * (self.q + 2 * self.kv) + self.q * self.hidden
        return self.num_layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head(self) -> int:
        """Parameters of the output head."""
        return self.vocab * self.hidden


@dataclass(frozen=True)
class Rates:
    """What the machine reached, and the size of an element in the dtype that is served."""

    read_bytes_per_s: float
    flops_per_s: float
    element_bytes: int

    def seconds(self, size_bytes: float, flops: float) -> float:
        """The slower of reading and computing; both can overlap."""
        return max(size_bytes / self.read_bytes_per_s, flops / self.flops_per_s)


def decode_step_s(shape: Shape, rates: Rates, *, batch: int, context: float) -> float:
    """Seconds of one step that gives each of `batch` sequences one token."""
    parameters = shape.layers + shape.head
    cache = batch * context * 2 * shape.num_layers * shape.kv
    flops = batch * (2 * parameters + 4 * shape.num_layers * shape.q * context)
    return rates.seconds((parameters + cache) * rates.element_bytes, flops)


def prefill_s(shape: Shape, rates: Rates, *, prompts: int, prompt_tokens: int) -> float:
    """Seconds until each of `prompts` prompts has its first token."""
    attention = 4 * shape.num_layers * shape.q * prompt_tokens * (prompt_tokens + 1) / 2
    flops = prompts * (2 * shape.layers * prompt_tokens + 2 * shape.head + attention)
    return rates.seconds((shape.layers + shape.head) * rates.element_bytes, flops)


@dataclass(frozen=True)
class Floor:
    """Least seconds for `batch` requests that arrive together."""

    prefill_s: float
    step_s: float
    output_tokens_per_s: float


def floor_of(
    shape: Shape, rates: Rates, *, batch: int, prompt_tokens: int, output_tokens: int
) -> Floor:
    """One prefill of all prompts, then a step for every output token after the first."""
    prefill = prefill_s(shape, rates, prompts=batch, prompt_tokens=prompt_tokens)
    # The context grows by one each step, so the mean step has the mean context.
    context = prompt_tokens + output_tokens / 2
    step = decode_step_s(shape, rates, batch=batch, context=context)
    total = prefill + (output_tokens - 1) * step
    return Floor(prefill, step, batch * output_tokens / total)
