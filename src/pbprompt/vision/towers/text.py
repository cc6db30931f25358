"""The text towers of CLIP, under OpenAI's key names, and of SigLIP: the plain computation (`engine` is the
fast one).

    CLIP:   f = ln(x_EOT)·W
    SigLIP: f = head(ln(x_L)),   x_L the last of all L positions, padding among them
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.vision.towers.layers import CLIP_EPS, FINE_EPS, Transformer


@dataclass(frozen=True)
class TextConfig:
    """Sizes of a text tower; `hidden` is the width inside its MLPs, 4·width where it is not given.

    `causal`: a position sees those before it alone; MobileCLIP's mostly see all, SigLIP's do.
    `reads_last`: the tower is SigLIP's, read at the last position of the whole context and not at EOT.
    """

    context_length: int
    vocab_size: int
    width: int
    heads: int
    layers: int
    causal: bool = True
    hidden: int | None = None
    reads_last: bool = False


class TextTower(nn.Module):
    """Token embeddings (SigLIP's: of the whole context) -> the projected state where the tower is read."""

    def __init__(self, config: TextConfig, embed_dim: int, activation: str) -> None:
        super().__init__()
        self.causal, self.reads_last = config.causal, config.reads_last
        width, eps = config.width, FINE_EPS if config.reads_last else CLIP_EPS
        # from_pretrained skips the random start, which on the meta device imports the whole compiler
        self.token_embedding = nn.Embedding.from_pretrained(torch.empty(config.vocab_size, width))
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, width))
        self.transformer = Transformer(config, activation, eps)
        self.ln_final = nn.LayerNorm(width, eps)
        if config.reads_last:
            self.text_head = nn.Linear(width, embed_dim)
        else:
            self.text_projection = nn.Parameter(torch.empty(width, embed_dim))

    def project(self, state: Float[Tensor, "*n w"]) -> Float[Tensor, "*n d"]:
        normed = self.ln_final(state)
        return self.text_head(normed) if self.reads_last else normed @ self.text_projection

    def forward(self, embeddings: Float[Tensor, "n l w"], lengths: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """EOT is at `lengths` − 1; where the last position is read they count for nothing."""
        x = embeddings.to(self.positional_embedding.dtype) + self.positional_embedding[: embeddings.shape[1]]
        for block in self.transformer.blocks:
            x = block(x, self.causal)
        if self.reads_last:
            return self.project(x[:, -1])
        return self.project(x[torch.arange(len(x), device=x.device), lengths - 1])
