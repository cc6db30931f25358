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
from pbprompt.clip.prompts import AnyTokenizer
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
def vocabulary_words(tokenizer: AnyTokenizer) -> dict[int, str]:
    """The tokens that can be read as a word."""
    return tokenizer.words()
