"""SentencePiece vocabularies, as the `tokenizer.json` beside the weights has them.

SigLIP reads text in lower case without punctuation (its own vocabulary of 32,000), SigLIP 2 in lower case
(Gemma's of 256,000). Both end a text with EOS, have no start token, and pad it to the whole context, which
the tower sees. MetaCLIP 2 reads 300 languages as they are written (XLM-V's 901,629 tokens), between a start
token and EOS, where its causal tower is read.
"""

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pbprompt.vision.towers.tokenizer import BaseTokenizer

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
SPACE = "▁"  # how the vocabulary spells the space before a word


@dataclass(frozen=True, eq=False)
class SentenceTokenizer(BaseTokenizer):
    """Text to token ids with a `tokenizers.Tokenizer`; `lower` and `punctuation` say what the model reads."""

    backend: Any
    vocab_size: int
    context_length: int
    sos: int | None
    eot: int
    pad: int
    lower: bool
    punctuation: bool
    pads_left: bool

    def __post_init__(self) -> None:
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # what spells a special token out is text

    def clean(self, text: str) -> str:
        """The text as the model was trained to read it."""
        text = text.lower() if self.lower else text
        if self.punctuation:
            return text
        return re.sub(r"\s+", " ", text.translate(NO_PUNCTUATION)).strip()

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """The text's token ids, without EOS, however many; `specials` are CLIP's and change nothing here."""
        cleaned = self.clean(text)
        return list(self.backend.encode(cleaned, add_special_tokens=False).ids) if cleaned else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return str(self.backend.decode([int(token) for token in ids], skip_special_tokens=False))

    def words(self) -> dict[int, str]:
        """Tokens that can be read as a word: those that begin one, of lower-case letters or digits."""
        spelled = (
            (token, piece[1:]) for piece, token in self.backend.get_vocab().items() if piece[0] == SPACE
        )
        return {token: word for token, word in sorted(spelled) if word.isalnum() and word == word.lower()}
