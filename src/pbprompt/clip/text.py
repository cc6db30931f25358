"""CLIP's text tower under OpenAI's key names: the plain computation (`engine` is the fast one)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.clip.layers import Transformer


@dataclass(frozen=True)
class TextConfig:
    """Sizes of a text tower. `causal`: a position sees those before it alone; MobileCLIP's mostly see all."""

    context_length: int
    vocab_size: int
    width: int
    heads: int
    layers: int
    causal: bool = True


class TextTower(nn.Module):
    """Token embeddings -> the projected state at EOT."""

    reads_last = False

    def __init__(self, config: TextConfig, embed_dim: int, activation: str) -> None:
        super().__init__()
        self.causal = config.causal
        # from_pretrained skips the random start, which on the meta device imports the whole compiler
        self.token_embedding = nn.Embedding.from_pretrained(torch.empty(config.vocab_size, config.width))
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, config.width))
        self.transformer = Transformer(config.width, config.layers, config.heads, activation)
        self.ln_final = nn.LayerNorm(config.width)
        self.text_projection = nn.Parameter(torch.empty(config.width, embed_dim))

    def project(self, eot: Float[Tensor, "*n w"]) -> Float[Tensor, "*n d"]:
        return self.ln_final(eot) @ self.text_projection

    def forward(self, embeddings: Float[Tensor, "n l w"], lengths: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        x = embeddings.to(self.positional_embedding.dtype) + self.positional_embedding[: embeddings.shape[1]]
        x = self.transformer(x, causal=self.causal)
        return self.project(x[torch.arange(len(x), device=x.device), lengths - 1])
