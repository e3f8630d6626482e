"""From a `PrepareRequest` to token ids. CPU work: call it off the event loop."""

from collections.abc import Sequence
from pathlib import Path

from tenora_engine.protocol.errors import ContextLengthError, InvalidRequestError
from tenora_engine.protocol.messages import ChatMessage, PreparedPrompt, PrepareRequest
from tenora_engine.text.chat_template import ChatTemplate, load_template_source
from tenora_engine.text.control_tokens import Placeholders
from tenora_engine.text.tokenizer import Tokenizer

NO_TEMPLATE_VERSIONS = frozenset({"text", "token_ids"})


class PromptEncoder:
    """Immutable; safe to use from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, template_source: str | None, *, context_length: int
    ) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._max_bytes = context_length * tokenizer.longest_token_bytes
        self._assigned = frozenset(tokenizer.vocab.values())
        self._template = (
            ChatTemplate(template_source, tokenizer.named_tokens, max_chars=2 * self._max_bytes)
            if template_source is not None
            else None
        )

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer, *, context_length: int) -> "PromptEncoder":
        """With the chat template of the model folder, if it has one."""
        source = load_template_source(folder, tokenizer.default_template)
        return cls(tokenizer, source, context_length=context_length)

    def encode(self, request: PrepareRequest) -> PreparedPrompt:
        """The ids as the model will read them.

        Raises:
            InvalidRequestError: the template refuses, an id is unknown, or nothing is left.
            ContextLengthError: the prompt leaves no room for one output token.
        """
        if request.messages is not None:
            prepared = self._encode_messages(request.messages)
        elif request.text is not None:
            self._refuse_hopeless((request.text,), param="prompt")
            prepared = PreparedPrompt(
                token_ids=tuple(self._tokenizer.encode(request.text)), template_version="text"
            )
        else:
            token_ids = request.token_ids or ()
            self._require_assigned(token_ids)
            prepared = PreparedPrompt(token_ids=token_ids, template_version="token_ids")
        self._require_fitting(prepared)
        return prepared

    def _encode_messages(self, messages: Sequence[ChatMessage]) -> PreparedPrompt:
        if self._template is None:
            raise InvalidRequestError(
                "This model has no chat template; send a text prompt instead.", param="messages"
            )
        if not messages:
            raise InvalidRequestError(
                "There are no messages.", code="empty_array", param="messages"
            )
        self._refuse_hopeless([turn.content for turn in messages], param="messages")
        control, placeholders = self._tokenizer.control_tokens, Placeholders()
        rendered = self._template.render(messages, lambda text: control.hide(text, placeholders))
        token_ids = (
            control.encode(rendered, placeholders)
            if placeholders
            else self._tokenizer.encode_rendered(rendered)
        )
        return PreparedPrompt(token_ids=tuple(token_ids), template_version=self._template.version)

    def _refuse_hopeless(self, texts: Sequence[str], *, param: str) -> None:
        """Refuse before any work a prompt that could not fit if all its tokens were the longest."""
        try:
            num_bytes = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError:
            raise InvalidRequestError(
                "The text contains half of a surrogate pair, which no encoding can carry.",
                param=param,
            ) from None
        if num_bytes > self._max_bytes:
            raise ContextLengthError(
                f"The prompt has {num_bytes} bytes, which is beyond the model's window of "
                f"{self._context_length} tokens.",
                param=param,
            )

    def _require_assigned(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            if token not in self._assigned:
                raise InvalidRequestError(f"There is no token {token}.", param="prompt")

    def _require_fitting(self, prepared: PreparedPrompt) -> None:
        param = "prompt" if prepared.template_version in NO_TEMPLATE_VERSIONS else "messages"
        num_tokens = len(prepared.token_ids)
        if num_tokens == 0:
            raise InvalidRequestError("The prompt is empty.", param=param)
        if num_tokens >= self._context_length:
            raise ContextLengthError(
                f"The prompt has {num_tokens} tokens; the model's window is "
                f"{self._context_length} tokens and must hold one token of output too.",
                param=param,
            )
