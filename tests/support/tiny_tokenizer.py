"""Two small tokenizers as Hugging Face folders, so that most text tests need no model.

Byte-level: one token per byte (ids 0 to 255), some merged words, ChatML specials. SentencePiece
style: byte fallback, `▁` for spaces, `<s>` and `</s>`.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = 262, 263, 264
"""Ids of the specials: after 256 bytes and six merged words."""
MODEL_VOCAB_SIZE = 272
"""The model's rows: a few more than there are tokens."""


def byte_ids(text: str) -> tuple[int, ...]:
    """The tokens of `text`, one per byte."""
    return tuple(text.encode())


def write_byte_level_folder(folder: Path, *, template: str | None = CHATML) -> Path:
    """A folder with tokenizer and configs of a byte-level BPE model."""
    alphabet = _byte_alphabet()
    vocab = {character: byte for byte, character in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return _write(
        folder,
        tokenizer,
        {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": template},
        eos=[END_OF_TEXT, IM_END],
    )


def write_sentencepiece_folder(folder: Path) -> Path:
    """A folder of a Llama-2 style tokenizer: ids 0 to 2 special, 3 to 258 bytes, then pieces."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "l", "e", "a", "d", "x", "▁l", "▁le", "▁lea", "▁lead", "▁x"]
    merges = [("▁", "l"), ("▁l", "e"), ("▁le", "a"), ("▁lea", "d"), ("▁", "x")]
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    specials = ("<unk>", "<s>", "</s>")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    template = (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '[' + message['role'] + '] ' + message['content'] + ' [/]' + eos_token }}"
        "{% endfor %}"
    )
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
    return _write(folder, tokenizer, config, eos=2)


def _write(
    folder: Path, tokenizer: Tokenizer, config: dict[str, Any], *, eos: int | list[int]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "tokenizer_config.json": config | {"tokenizer_class": "PreTrainedTokenizerFast"},
        "generation_config.json": {"eos_token_id": eos},
        "config.json": {"vocab_size": MODEL_VOCAB_SIZE},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def _byte_alphabet() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]
