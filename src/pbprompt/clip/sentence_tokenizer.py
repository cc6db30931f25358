"""SigLIP's tokenisers: SentencePiece vocabularies, as the `tokenizer.json` beside the weights has them.

SigLIP reads text in lower case without punctuation (its own vocabulary of 32,000), SigLIP 2 in lower case
(Gemma's of 256,000). Both end a text with EOS, have no start token, and pad it to the whole context, which
the tower sees.
"""

import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from pbprompt.clip.tokenizer import warn_cut

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
SPACE = "▁"  # how the vocabulary spells the space before a word


class SentenceTokenizer:
    """Text to token ids with a `tokenizers.Tokenizer`; `punctuation` says whether the model reads it."""

    def __init__(
        self, backend: Any, *, vocab_size: int, context_length: int, eot: int, pad: int, punctuation: bool
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True  # what spells a special token out is text
        self._backend = backend
        self.vocab_size, self.context_length = vocab_size, context_length
        self.eot, self.pad, self.punctuation = eot, pad, punctuation

    def clean(self, text: str) -> str:
        """The text as the model was trained to read it."""
        text = text.lower()
        if self.punctuation:
            return text
        return re.sub(r"\s+", " ", text.translate(NO_PUNCTUATION)).strip()

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """The text's token ids, without EOS, however many; `specials` are CLIP's and change nothing here."""
        cleaned = self.clean(text)
        return list(self._backend.encode(cleaned, add_special_tokens=False).ids) if cleaned else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return str(self._backend.decode([int(token) for token in ids], skip_special_tokens=False))

    def enclose(self, ids: list[int]) -> list[int]:
        """What the tower reads of a text, before the padding: text [EOS]."""
        return [*ids, self.eot]

    def __call__(self, texts: str | Sequence[str]) -> tuple[Int[Tensor, "n l"], Int[Tensor, " n"]]:
        """Ids with EOS, padded to the context, and the lengths: EOS is at `lengths - 1`."""
        texts = [texts] if isinstance(texts, str) else texts
        ids = torch.full((len(texts), self.context_length), self.pad)
        lengths = torch.zeros(len(texts), dtype=torch.long)
        for row, text in enumerate(texts):
            tokens = self.enclose(self.encode(text))
            if len(tokens) > self.context_length:
                warn_cut(text, len(tokens), self.context_length)
                tokens = self.enclose(tokens[: self.context_length - 1])
            ids[row, : len(tokens)] = torch.tensor(tokens)
            lengths[row] = len(tokens)
        return ids, lengths

    def words(self) -> dict[int, str]:
        """Tokens that can be read as a word: those that begin one, of lower-case letters or digits."""
        spelled = (
            (token, piece[1:]) for piece, token in self._backend.get_vocab().items() if piece[0] == SPACE
        )
        return {token: word for token, word in sorted(spelled) if word.isalnum() and word == word.lower()}
