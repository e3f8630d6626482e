"""Engine events to OpenAI bodies and chunks: one class for each endpoint, the same four methods."""

from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from tenora_engine.protocol.messages import Finished, Usage
from tenora_platform.inference.openai_schemas import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    CompletionUsage,
    PromptTokensDetails,
    TenoraFacts,
    TextChoice,
    TextCompletion,
)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What every body and every chunk of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    include_usage: bool = False
    adapter: str | None = None
    revision: int | None = None

    @property
    def common(self) -> dict[str, Any]:
        """The members that all of OpenAI's objects share."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    @property
    def no_usage(self) -> UnsetType | None:
        """`usage` of a chunk that is not the usage chunk: null if one will come, else absent."""
        return None if self.include_usage else UNSET

    def facts(self, finished: Finished) -> TenoraFacts:
        """Our extension field."""
        return TenoraFacts(
            execution=finished.identity.execution_hash(),
            adapter=self.adapter,
            revision=self.revision,
        )


class Renderer(Protocol):
    """One endpoint's dialect."""

    def whole(self, text: str, finished: Finished) -> msgspec.Struct:
        """The body of an answer that is not streamed."""
        ...

    def opening(self) -> msgspec.Struct | None:
        """The chunk before all text, if the dialect has one."""
        ...

    def delta(self, text: str) -> msgspec.Struct:
        """A chunk that adds `text`."""
        ...

    def closing(self, finished: Finished) -> msgspec.Struct:
        """The chunk that carries the finish reason."""
        ...

    def usage(self, finished: Finished) -> msgspec.Struct:
        """The chunk without choices that carries the usage."""
        ...


class ChatRenderer:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._common = envelope.common

    def whole(self, text: str, finished: Finished) -> ChatCompletion:
        """See `Renderer.whole`."""
        choice = ChatChoice(message=AssistantMessage(content=text), finish_reason=finished.reason)
        return ChatCompletion(
            **self._common,
            choices=[choice],
            usage=usage_of(finished.usage),
            tenora=self._envelope.facts(finished),
        )

    def opening(self) -> ChatChunk:
        """See `Renderer.opening`: the role."""
        return self._chunk(ChatChunkChoice(delta=ChatDelta(role="assistant", content="")))

    def delta(self, text: str) -> ChatChunk:
        """See `Renderer.delta`."""
        return self._chunk(ChatChunkChoice(delta=ChatDelta(content=text)))

    def closing(self, finished: Finished) -> ChatChunk:
        """See `Renderer.closing`."""
        choice = ChatChunkChoice(delta=ChatDelta(), finish_reason=finished.reason)
        return self._chunk(choice, tenora=self._envelope.facts(finished))

    def usage(self, finished: Finished) -> ChatChunk:
        """See `Renderer.usage`."""
        return ChatChunk(**self._common, choices=(), usage=usage_of(finished.usage))

    def _chunk(self, choice: ChatChunkChoice, tenora: TenoraFacts | UnsetType = UNSET) -> ChatChunk:
        return ChatChunk(
            **self._common, choices=(choice,), usage=self._envelope.no_usage, tenora=tenora
        )


class TextRenderer:
    """text_completion, whole or in chunks of the same shape."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._common = envelope.common

    def whole(self, text: str, finished: Finished) -> TextCompletion:
        """See `Renderer.whole`."""
        return TextCompletion(
            **self._common,
            choices=(TextChoice(text=text, finish_reason=finished.reason),),
            usage=usage_of(finished.usage),
            tenora=self._envelope.facts(finished),
        )

    def opening(self) -> None:
        """See `Renderer.opening`: text completions have none."""

    def delta(self, text: str) -> TextCompletion:
        """See `Renderer.delta`."""
        return self._chunk(TextChoice(text=text))

    def closing(self, finished: Finished) -> TextCompletion:
        """See `Renderer.closing`."""
        choice = TextChoice(text="", finish_reason=finished.reason)
        return self._chunk(choice, tenora=self._envelope.facts(finished))

    def usage(self, finished: Finished) -> TextCompletion:
        """See `Renderer.usage`."""
        return TextCompletion(**self._common, choices=(), usage=usage_of(finished.usage))

    def _chunk(self, choice: TextChoice, tenora: TenoraFacts | UnsetType = UNSET) -> TextCompletion:
        return TextCompletion(
            **self._common, choices=(choice,), usage=self._envelope.no_usage, tenora=tenora
        )


def usage_of(usage: Usage) -> CompletionUsage:
    """The engine's counts in OpenAI's words."""
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_prompt_tokens),
    )
