"""Turns token ids into text as they come, whole characters only."""

import codecs
from collections.abc import Iterable

from tenora_engine.text.token_bytes import TokenBytes

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one output. Cost per token is constant, whatever came before.

    Bytes of an unfinished character wait for the rest of it. Each maximal part that can be no
    UTF-8 becomes one U+FFFD (Unicode 3.9, "substitution of maximal subparts"). Special tokens
    have no text. All deltas together are the text of all tokens at once, however they were cut.
    """

    def __init__(self, token_bytes: TokenBytes, *, starts_text: bool = False) -> None:
        """With `starts_text` the tokenizer's own rule for the start of a text applies.

        SentencePiece tokenizers write the first word of a text with a space that is not part of
        it. An answer to a chat starts a text; a raw completion continues one and keeps the space.
        """
        self._table = token_bytes.table
        self._decoder = _Utf8Decoder(errors="replace")
        self._drops_space = starts_text and token_bytes.marks_first_word

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that are complete with these tokens.

        Raises:
            IndexError: an id beyond the model's vocabulary, which the engine never samples.
        """
        table = self._table
        return self._start(self._decoder.decode(b"".join([table[token] for token in token_ids])))

    def flush(self) -> str:
        """The text of bytes still waiting, once no more tokens will come."""
        return self._start(self._decoder.decode(b"", final=True))

    def _start(self, text: str) -> str:
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text
