"""OpenAI's wire format: request bodies as we honour them, answers and stream chunks.

Types and ranges that a type can express are checked here; `parsing.py` checks the rest.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tenora_platform.http.bodies import Body
from tenora_platform.inference.unsupported import CHAT, TEXT, refuse_unsupported

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1)]
Label = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
FinishReason = Literal["stop", "length"]

# Requests


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`include_obfuscation` and other members are ignored: they change no token."""

    include_usage: bool | None = None


class OpenAIRequest(Body, frozen=True, kw_only=True):
    """What chat and text completions share. null means absent.

    `user`, `safety_identifier`, `prompt_cache_key`, `metadata` and `store` are opaque labels:
    checked, never stored, and never a statement about who is calling.
    """

    model: str
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    metadata: Annotated[dict[Label, MetadataValue], Meta(max_length=16)] | None = None


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message. Only parts of type `text` are served."""

    type: str
    text: str | None = None


class ChatTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One message. The text parts of a list are joined without a separator."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class ChatRequest(OpenAIRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[ChatTurn]

    @classmethod
    def check_fields(cls, fields: dict[str, Any]) -> None:
        """Refuse effective values of unserved fields. Raises UnsupportedParameter."""
        refuse_unsupported(fields, CHAT)


class CompletionRequest(OpenAIRequest, frozen=True, kw_only=True):
    """Body of POST /v1/completions: one prompt as text or as token ids."""

    prompt: str | list[str | int | list[int]]

    @classmethod
    def check_fields(cls, fields: dict[str, Any]) -> None:
        """Refuse effective values of unserved fields. Raises UnsupportedParameter."""
        refuse_unsupported(fields, TEXT)


# Answers


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """`cached_tokens` is part of `prompt_tokens`."""

    cached_tokens: int


class CompletionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's counts, as they are settled."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TenoraFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Our extension field: which revision answered, and the hash of how."""

    execution: str
    adapter: str | None = None
    revision: int | None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Its content may be empty and is never null."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a chat completion."""

    message: AssistantMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str
    tenora: TenoraFacts


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds; the first names the role, the last is empty."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a chunk."""

    delta: ChatDelta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion. `usage` is present only if it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    system_fingerprint: str
    usage: CompletionUsage | UnsetType | None = UNSET
    tenora: TenoraFacts | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a text completion, whole or of one chunk."""

    text: str
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A text completion; a chunk of one has the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    system_fingerprint: str
    usage: CompletionUsage | UnsetType | None = UNSET
    tenora: TenoraFacts | UnsetType = UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be called. `parent` is the base model of an adapter."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tenora", "tenant"]
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly what the caller's key may call."""

    object: Literal["list"] = "list"
    data: list[Model]
