"""Where learned context vectors start: at the embeddings of words, or at random."""

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import Backbone

INITIAL_STD = 0.02


def word_embeddings(backbone: Backbone, words: str, tokens: int) -> Float[Tensor, "b w"]:
    """Token embeddings of words such as "a photo of a", which must take exactly `tokens` tokens."""
    ids = backbone.tokenizer.encode(words)
    if len(ids) != tokens:
        raise InputError(f"words {words!r} take {len(ids)} tokens, but tokens is {tokens}: make them equal")
    return backbone.token_embedding(torch.tensor(ids, device=backbone.device)).float()


def start_context(
    backbone: Backbone, tokens: int, words: str, generator: torch.Generator | None = None
) -> Float[Tensor, "b w"]:
    """Where b context vectors start: at the words' embeddings, or at N(0, 0.02²)."""
    if tokens < 1:
        raise InputError(f"setting 'tokens' is {tokens}: use at least 1")
    if words:
        return word_embeddings(backbone, words, tokens).cpu()
    return INITIAL_STD * torch.randn(tokens, backbone.text_width, generator=generator)
