"""Fields of OpenAI's API (and of common servers) that we know and do not serve.

A field is honoured or refused, never silently dropped: its neutral values pass, every other
value is refused by name. Fields in neither table nor schema are unknown, and ignored.
"""

from collections.abc import Mapping
from typing import Any, Final

from tenora_platform.errors import UnsupportedParameter

_COMMON: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "service_tier": ("auto", "default"),
    "prompt_cache_options": ({},),
    # other servers' extensions that clients send through `extra_body`
    "top_k": (-1, 0),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "repetition_penalty": (1, 1.0),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": ({},),
    # a template is part of a model's revision: one from a request is never compiled
    "chat_template": (),
    "chat_template_kwargs": ({},),
}

CHAT: Final[Mapping[str, tuple[Any, ...]]] = {
    **_COMMON,
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),  # says nothing without tools
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
}

TEXT: Final[Mapping[str, tuple[Any, ...]]] = {
    **_COMMON,
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


def refuse_unsupported(
    fields: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], *, prefix: str = ""
) -> None:
    """Raise UnsupportedParameter for the first known field with a value that would matter.

    null is always neutral.
    """
    for name, values in neutral.items():
        value = fields.get(name)
        if value is not None and not any(_same(value, allowed) for allowed in values):
            raise UnsupportedParameter(
                f"'{prefix}{name}' is not supported with this value. Leave it out.",
                param=f"{prefix}{name}",
            )


def _same(value: Any, allowed: Any) -> bool:
    """Equality in which `true` is not 1 and `1.0` is not 1."""
    return type(value) is type(allowed) and bool(value == allowed)
