"""Which words of the vocabulary are nearest to a prompt's learned token embeddings?

    rank tokens t by cos(v_j, E_t),  E the frozen token embedding table

By cosine rather than distance: rare tokens have short embeddings, which are near to everything. Learned
vectors need not lie near any word: a low cosine means that the word says little.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.clip.tokenizer import BYTES, Tokenizer
from pbprompt.core.likelihood import cosines

Word = tuple[str, float]  # spelling, cosine


@torch.no_grad()
def nearest_words(backbone: Backbone, vectors: Float[Tensor, "n w"], top_k: int = 5) -> list[list[Word]]:
    """The `top_k` nearest words of each vector with their cosines, nearest first."""
    words = vocabulary_words(backbone.tokenizer)
    ids = torch.tensor(list(words), device=backbone.device)
    similarity = cosines(vectors.to(backbone.device), backbone.token_embedding(ids))
    best = similarity.sort(dim=-1, descending=True, stable=True)
    spellings = list(words.values())
    return [
        [(spellings[at], value) for at, value in zip(order[:top_k], values[:top_k], strict=True)]
        for order, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@lru_cache(maxsize=4)
def vocabulary_words(tokenizer: Tokenizer) -> dict[int, str]:
    """Tokens that can be read as a word: those that end one and are lower-case letters or digits throughout.

    Bytes that are no character, pieces from inside a word, punctuation, emoji, the special tokens, and
    capitals, which no text has once it is cleaned, are left out. A word's last piece cannot be told from a
    whole word: the tokeniser does not mark beginnings.
    """
    words = {}
    for token in range(BYTES, tokenizer.vocab_size - 2):  # before: bytes inside a word; behind: SOS and EOT
        spelling = tokenizer.decode([token])
        word = spelling[:-1]
        if spelling.endswith(" ") and word.isalnum() and word == word.lower():
            words[token] = word
    return words
