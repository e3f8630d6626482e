"""Request bodies to one `Call`: the checks that types cannot express, before anything is spent.

Rules that a client may rely on:
- `developer` is another word for the role `system`.
- A list of text parts is joined without a separator; any other part is refused by its index.
- `max_tokens` and `max_completion_tokens` mean the same; if both are given the larger counts.
- A temperature below 1e-5 and a `top_p` of 0 are greedy.
- `stop`: up to 4 strings of 1 to 256 characters; `[]` and null keep the model's own terminators.
"""

from typing import Literal

import msgspec

from tenora_engine.protocol.messages import ChatMessage, PrepareRequest, SamplingParams
from tenora_platform.errors import InvalidInput, UnsupportedParameter
from tenora_platform.inference.openai_schemas import (
    ChatRequest,
    ChatTurn,
    CompletionRequest,
    OpenAIRequest,
)

GREEDY_BELOW = 1e-5
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
_MAX_TOKEN_ID = 2**31 - 1

Endpoint = Literal["chat.completions", "completions"]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A valid request, whichever endpoint it came through. `max_tokens` None: what fits."""

    endpoint: Endpoint
    model: str
    prompt: PrepareRequest
    sampling: SamplingParams
    max_tokens: int | None
    is_streamed: bool
    include_usage: bool

    @property
    def prompt_field(self) -> str:
        """The field of the body that holds the prompt."""
        return "messages" if self.endpoint == "chat.completions" else "prompt"


def parse_chat(body: ChatRequest) -> Call:
    """Raises InvalidInput naming the field at fault."""
    if not body.messages:
        raise InvalidInput(
            "'messages' is empty. Send at least one message.", code="empty_array", param="messages"
        )
    messages = tuple(_message(turn, f"messages[{i}]") for i, turn in enumerate(body.messages))
    return _call("chat.completions", body, PrepareRequest(messages=messages))


def parse_completion(body: CompletionRequest) -> Call:
    """Raises InvalidInput naming the field at fault."""
    return _call("completions", body, _prompt(body.prompt))


def _call(endpoint: Endpoint, body: OpenAIRequest, prompt: PrepareRequest) -> Call:
    is_streamed = bool(body.stream)
    if body.stream_options is not None and not is_streamed:
        raise InvalidInput(
            "'stream_options' is allowed only with 'stream': true.", param="stream_options"
        )
    given = [n for n in (body.max_tokens, body.max_completion_tokens) if n is not None]
    return Call(
        endpoint=endpoint,
        model=body.model,
        prompt=prompt,
        sampling=_sampling(body),
        max_tokens=max(given, default=None),
        is_streamed=is_streamed,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _sampling(body: OpenAIRequest) -> SamplingParams:
    defaults = SamplingParams()
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_p = defaults.top_p if body.top_p is None else body.top_p
    if temperature < GREEDY_BELOW or top_p == 0:
        temperature, top_p = 0.0, 1.0
    return SamplingParams(
        temperature=temperature, top_p=top_p, seed=body.seed, stop=_stops(body.stop)
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidInput(f"'stop' takes at most {MAX_STOPS} strings.", param="stop")
    if not all(1 <= len(text) <= MAX_STOP_CHARACTERS for text in stops):
        raise InvalidInput(
            f"Each 'stop' string has 1 to {MAX_STOP_CHARACTERS} characters.", param="stop"
        )
    return stops


def _message(turn: ChatTurn, param: str) -> ChatMessage:
    if turn.role in ("tool", "function"):
        raise UnsupportedParameter(
            "Tool results are not supported. Send system, user and assistant messages.",
            param=f"{param}.role",
        )
    for name, value in (("tool_calls", turn.tool_calls), ("function_call", turn.function_call)):
        if value not in (None, []):
            raise UnsupportedParameter(
                "Tool calls are not supported. Send text only.", param=f"{param}.{name}"
            )
    return ChatMessage(
        role="system" if turn.role == "developer" else turn.role,
        content=_content(turn, f"{param}.content"),
        name=turn.name,
    )


def _content(turn: ChatTurn, param: str) -> str:
    if turn.content is None:
        raise InvalidInput("The content of a message must be text, not null.", param=param)
    if isinstance(turn.content, str):
        return turn.content
    if not turn.content:
        raise InvalidInput("The list of content parts is empty.", code="empty_array", param=param)
    for index, part in enumerate(turn.content):
        if part.type != "text" or part.text is None:
            raise InvalidInput(
                "Only content parts of type 'text' with a 'text' are supported.",
                param=f"{param}[{index}]",
            )
    return "".join(part.text or "" for part in turn.content)


def _prompt(prompt: str | list[str | int | list[int]]) -> PrepareRequest:
    """One prompt, as text or token ids, bare or as the only member of a list."""
    if prompt in ([], [[]]):
        raise InvalidInput("'prompt' is empty.", code="empty_array", param="prompt")
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise UnsupportedParameter(
                "Several prompts in one request are not supported. Send one request each.",
                param="prompt",
            )
        return _prompt_of(prompt[0])
    return _prompt_of(prompt)


def _prompt_of(prompt: object) -> PrepareRequest:
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidInput("'prompt' is empty. Send some text.", param="prompt")
        return PrepareRequest(text=prompt)
    try:
        token_ids = msgspec.convert(prompt, tuple[int, ...])
    except msgspec.ValidationError as error:
        raise InvalidInput(
            "'prompt' is one text or one list of token ids, not a mixture.", param="prompt"
        ) from error
    if not all(0 <= token_id <= _MAX_TOKEN_ID for token_id in token_ids):
        raise InvalidInput("A token id in 'prompt' is out of range.", param="prompt")
    return PrepareRequest(token_ids=token_ids)
