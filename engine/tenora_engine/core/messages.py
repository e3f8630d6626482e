"""Messages between an engine's front and its core process, one ZeroMQ PAIR socket each way.

Token ids only: text, templates and stop strings are the front's. One `StepOutput` carries all
sequences that a step advanced.
"""

import msgspec

from tenora_engine.protocol.errors import ErrorPayload
from tenora_engine.protocol.messages import (
    AdapterState,
    ProbeReport,
    PurgeReceipt,
    Timings,
)


class CoreMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages of this module."""


# Front to core


class AddSequence(CoreMessage, frozen=True, tag="add"):
    """Queue one sequence. `cache_root` is the 32-byte parent hash of its first KV block."""

    request_id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop_token_ids: tuple[int, ...]
    adapter_digest: str | None
    cache_root: bytes
    fairness_key: str
    weight: float
    priority: int


class AbortSequence(CoreMessage, frozen=True, tag="abort"):
    """Stop a sequence and free what it holds; unknown ids are ignored."""

    request_id: str


class ProbeAdapter(CoreMessage, frozen=True, tag="probe"):
    """Compare an adapter with the base on the given prompts; answered by `Reply`."""

    call_id: int
    digest: str
    prompts: tuple[tuple[int, ...], ...]


class PurgeRoots(CoreMessage, frozen=True, tag="purge"):
    """Zero and forget all cached blocks that descend from these roots; answered by `Reply`."""

    call_id: int
    cache_roots: tuple[bytes, ...]


class QueryAdapters(CoreMessage, frozen=True, tag="adapters"):
    """Ask for the state of every adapter known to the core; answered by `Reply`."""

    call_id: int


class Shutdown(CoreMessage, frozen=True, tag="shutdown"):
    """End the step loop after the current step."""


ToCore = AddSequence | AbortSequence | ProbeAdapter | PurgeRoots | QueryAdapters | Shutdown


# Core to front


class CoreReady(CoreMessage, frozen=True, tag="ready"):
    """The model is loaded and the loop runs."""

    vocab_size: int
    context_length: int
    max_lora_rank: int
    num_blocks: int
    block_size: int
    kernel_backend: str
    attention_backend: str
    weight_dtype: str
    kv_dtype: str


class CoreFailed(CoreMessage, frozen=True, tag="failed"):
    """The core could not start; it exits after this."""

    error: ErrorPayload


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one sequence.

    `finish_reason` is `"stop"` (a stop token, which is the last of `token_ids`) or `"length"`;
    it is None while the sequence goes on. `error` ends the sequence too. The counters are
    totals up to and including this step.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: ErrorPayload | None = None
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    timings: Timings | None = None
    """Set with the first token and again with the last output of the sequence."""


class CoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """Where the core stands after a step; also sent every second while idle."""

    steps: int
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_running_adapters: int


class StepOutput(CoreMessage, frozen=True, tag="step"):
    """All outputs of one step."""

    sequences: tuple[SequenceOutput, ...]
    stats: CoreStats


class Reply(CoreMessage, frozen=True, tag="reply"):
    """Answer to a call; exactly one of the payload fields is set."""

    call_id: int
    probe: ProbeReport | None = None
    purge: PurgeReceipt | None = None
    adapters: tuple[AdapterState, ...] | None = None
    error: ErrorPayload | None = None


FromCore = CoreReady | CoreFailed | StepOutput | Reply

to_core_encoder = msgspec.msgpack.Encoder()
to_core_decoder = msgspec.msgpack.Decoder(ToCore)
from_core_encoder = msgspec.msgpack.Encoder()
from_core_decoder = msgspec.msgpack.Decoder(FromCore)
