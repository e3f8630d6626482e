"""What crosses the border between platform and engine, as frozen msgspec structs.

Times are milliseconds since the Unix epoch where a name ends in `_at_ms`, and durations in
milliseconds where it ends in `_ms`. Nothing here may hold text of a prompt beyond the request
that carries it.
"""

from typing import Literal

import msgspec

PROTOCOL_VERSION = 1

FinishReason = Literal["stop", "length"]
Outcome = Literal["stop", "length", "aborted", "error"]
AdapterTier = Literal["absent", "disk", "host", "device"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every struct in the protocol: immutable, built by keyword."""


# Adapters


class AdapterRef(Message, frozen=True):
    """An adapter by content: `digest` is the SHA-256 (hex) of its canonical file.

    The canonical file holds the weights and every configuration field that changes the result,
    so two adapters with one digest compute the same function. Names never reach the engine.
    """

    digest: str


class AdapterProblem(Message, frozen=True):
    """One reason why an upload was refused: a stable `code`, where it is, and what to do."""

    code: str
    message: str
    field: str | None = None


class AdapterReport(Message, frozen=True):
    """What inspection found. Accepted exactly when `ref` is set; all problems come at once."""

    ref: AdapterRef | None
    problems: tuple[AdapterProblem, ...] = ()
    warnings: tuple[AdapterProblem, ...] = ()
    size_bytes: int = 0
    num_parameters: int = 0
    max_rank: int = 0
    num_modules: int = 0
    target_modules: tuple[str, ...] = ()
    declared_base: str | None = None
    scalings: tuple[float, ...] = ()
    """The distinct effective scales (alpha / r, or alpha / sqrt(r) for rsLoRA), ascending."""


class InspectRequest(Message, frozen=True):
    """Inspect the upload under `prefix` of the shared object store.

    `prefix` is made by the platform from ids of its own, never from a tenant's text. Expected
    below it: `adapter_config.json` and `adapter_model.safetensors`.
    """

    prefix: str


class ProbeReport(Message, frozen=True):
    """The adapter beside its base on fixed probe prompts, after it was loaded to serve."""

    ref: AdapterRef
    finite: bool
    max_logit_delta: float
    changed_token_share: float
    """Share of probe positions whose greedy token differs from the base model's, 0 to 1."""


class AdapterState(Message, frozen=True):
    """Where one adapter's weights are now, and whether running requests hold them."""

    digest: str
    tier: AdapterTier
    size_bytes: int
    num_running: int
    last_used_at_ms: int


# Prompts


class ChatMessage(Message, frozen=True):
    """One turn. `content` is plain text; control-token text inside it stays text."""

    role: str
    content: str
    name: str | None = None


class PrepareRequest(Message, frozen=True):
    """Exactly one of `messages` (chat template), `text` or `token_ids` is set."""

    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    adapter: AdapterRef | None = None


class PreparedPrompt(Message, frozen=True):
    """Token ids as the model will read them, and the version of what made them."""

    token_ids: tuple[int, ...]
    template_version: str
    """Hash of the chat template, or `"text"` / `"token_ids"` where none was applied."""


# Generation


class SamplingParams(Message, frozen=True):
    """How tokens are chosen. `temperature` 0 is greedy; `seed` fixes (seed, position) draws."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class GenerateRequest(Message, frozen=True):
    """One admitted request.

    `max_tokens` is the reserved output: the engine never samples beyond it. `cache_scope` is
    opaque bytes; prefixes are shared only between requests with equal scopes. `fairness_key`
    and `weight` order competing work. `attribution` is an opaque envelope of the platform's: it
    is journalled with the usage record and never read by the engine.
    """

    request_id: str
    token_ids: tuple[int, ...]
    template_version: str
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    adapter: AdapterRef | None = None
    cache_scope: bytes = b""
    fairness_key: str = ""
    weight: float = 1.0
    priority: int = 0
    deadline_at_ms: int | None = None
    attribution: bytes = b""


class Delta(Message, frozen=True, tag="delta"):
    """New text (whole characters only) and the ids of the tokens sampled since the last delta.

    A token whose text is still held back (part of a character, or of a possible stop string)
    appears in `token_ids` of the delta that follows; text and ids need not line up.
    """

    text: str
    token_ids: tuple[int, ...] = ()


class Usage(Message, frozen=True):
    """Token counts of one request; the engine is their only source.

    `completion_tokens` counts every sampled token up to and including the one that ended the
    output. `cached_prompt_tokens` is part of `prompt_tokens` and fixed at first admission.
    `computed_tokens` includes recomputation after preemption and is not billed.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    adapter_digest: str | None = None


class Timings(Message, frozen=True):
    """Durations seen by the engine, in milliseconds; 0 where the phase was not reached."""

    queue_ms: float = 0.0
    load_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    """From acceptance to the first sampled token: queue, adapter load and prefill together."""
    total_ms: float = 0.0


class ExecutionIdentity(Message, frozen=True):
    """Everything that decides what a request computes, apart from its prompt."""

    model_digest: str
    tokenizer_digest: str
    template_version: str
    adapter_digest: str | None
    engine_version: str
    kernel_backend: str
    weight_dtype: str
    kv_dtype: str
    attention_backend: str
    topology: str
    prefix_cache: str
    sampling: SamplingParams

    def execution_hash(self) -> str:
        """SHA-256 (hex, first 32 digits) over the typed, length-framed encoding of all fields."""
        import hashlib

        encoded = msgspec.msgpack.encode(msgspec.structs.astuple(self))
        return hashlib.sha256(b"tenora-execution-v1\0" + encoded).hexdigest()[:32]


class Finished(Message, frozen=True, tag="finished"):
    """The last event of a generation that ran to its end."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    identity: ExecutionIdentity


GenerateEvent = Delta | Finished


# Usage journal


class UsageRecord(Message, frozen=True):
    """One durable journal row: what a request used, however it ended.

    `(replica_id, seq)` orders records of one replica; `request_id` is unique for ever.
    `error_code` is set exactly when `outcome` is `"error"`. `estimated` marks counts taken from
    a checkpoint because the replica died while the request ran.
    """

    replica_id: str
    seq: int
    request_id: str
    outcome: Outcome
    usage: Usage
    timings: Timings
    identity: ExecutionIdentity
    execution_hash: str
    started_at_ms: int
    completed_at_ms: int
    attribution: bytes
    error_code: str | None = None
    estimated: bool = False


class UsageBatch(Message, frozen=True):
    """Records with ascending `seq`; empty when all were acknowledged."""

    replica_id: str
    records: tuple[UsageRecord, ...]


# Engine


class EngineInfo(Message, frozen=True):
    """Facts that do not change while a replica runs."""

    replica_id: str
    engine_version: str
    base_model: str
    model_digest: str
    context_length: int
    vocab_size: int
    max_lora_rank: int
    kernel_backend: str
    weight_dtype: str


class Health(Message, frozen=True):
    """Whether a request would be served now, by progress rather than by an open socket."""

    serving: bool
    reason: str
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that no request holds and that carry no cached prefix."""
    num_cached_blocks: int = 0
    """Blocks that only the prefix cache holds; they are free to be reused."""
    num_running_adapters: int = 0
    steps: int = 0
    journal_backlog: int = 0
    """Usage records not yet acknowledged by the worker."""


class PurgeReceipt(Message, frozen=True):
    """Proof that a scope's cached prefixes are gone and their memory was zeroed."""

    num_blocks_zeroed: int
    completed_at_ms: int
