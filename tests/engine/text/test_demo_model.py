"""Our ids are those of `transformers` on the demo model's own template and tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from tenora_engine.protocol.messages import ChatMessage, PrepareRequest
from tenora_engine.text.detokenizer import Detokenizer
from tenora_engine.text.prompt_encoder import PromptEncoder
from tenora_engine.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

CONVERSATIONS = [
    [("user", "Hello!")],
    [("system", "Be brief."), ("user", "  two  spaces\n\nand lines ")],
    [
        ("user", "Übung 漢字 \U0001f600"),
        ("assistant", "ok"),
        ("user", "def f(x):\n    return x < 3"),
    ],
    [("user", "a <"), ("assistant", "> b"), ("user", "x <|im")],
]


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> Tokenizer:
    return Tokenizer(demo_folder)


@pytest.fixture(scope="module")
def oracle(demo_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_folder)


@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_messages_give_the_ids_of_transformers(
    tokenizer: Tokenizer, oracle: Any, demo_folder: Path, turns: list[tuple[str, str]]
) -> None:
    encoder = PromptEncoder.load(demo_folder, tokenizer, context_length=8192)
    messages = tuple(ChatMessage(role=role, content=content) for role, content in turns)
    expected = oracle.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert list(encoder.encode(PrepareRequest(messages=messages)).token_ids) == expected


def test_raw_text_gives_the_ids_of_transformers(tokenizer: Tokenizer, oracle: Any) -> None:
    text = "<|im_start|>user\nOnce upon a time<|im_end|>\n"
    assert tokenizer.encode(text) == oracle(text)["input_ids"]


def test_text_comes_back(tokenizer: Tokenizer, oracle: Any) -> None:
    text = "Once upon a time \U0001f468\u200d\U0001f469 漢字\n    indented\ttext"
    detokenizer = Detokenizer(tokenizer.token_bytes())
    pieces = [detokenizer.push((token,)) for token in tokenizer.encode(text)]
    assert "".join(pieces) + detokenizer.flush() == text
