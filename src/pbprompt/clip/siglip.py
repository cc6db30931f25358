"""SigLIP's towers (SigLIP 2's of a fixed resolution are the same): no causal mask, attention pooling.

    image: f = m + mlp(ln(m)),  m = out(attention(probe; patches))        the probe is a learned query
    text:  f = head(ln(x_L)),   x_L the last of all L positions, padding among them

Logits are exp(s)·cos(image, text) + b: the bias b is for the sigmoid reading and leaves a softmax as it is.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.clip.layers import (
    Attention,
    BlockTower,
    Mlp,
    Seen,
    SquarePatches,
    Transformer,
    merge_heads,
    split_heads,
)

SIGLIP_EPS = 1e-6


@dataclass(frozen=True)
class SiglipVisionConfig(SquarePatches):
    """Sizes of the image tower; `hidden` is the width inside its MLPs."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    hidden: int


@dataclass(frozen=True)
class SiglipTextConfig:
    """Sizes of the text tower."""

    context_length: int
    vocab_size: int
    width: int
    heads: int
    layers: int
    hidden: int


class AttentionPool(nn.Module):
    """One learned query over the patches, then a residual MLP.

    Row 0 is the image. Row 1 + i is the image that the pool would give if patch i were all it saw: the value
    of patch i through the output and the MLP. SigLIP defines no patches in the joint space; these are ours.
    """

    def __init__(self, width: int, heads: int, hidden: int, activation: str, eps: float = SIGLIP_EPS) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width, eps)
        self.mlp = Mlp(width, activation, hidden)

    def forward(self, x: Float[Tensor, "b m w"]) -> Float[Tensor, "b n w"]:
        weight, bias, width = self.attn.in_proj_weight, self.attn.in_proj_bias, x.shape[-1]
        q = F.linear(self.probe, weight[:width], bias[:width]).expand(x.shape[0], 1, -1)
        k, v = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        heads = self.attn.heads
        seen = F.scaled_dot_product_attention(
            split_heads(q, heads), split_heads(k, heads), split_heads(v, heads)
        )
        pooled = self.attn.out_proj(torch.cat([merge_heads(seen), v], dim=1))
        return pooled + self.mlp(self.ln_1(pooled))


class SiglipImageTower(BlockTower):
    """Image -> the pooled vector and one vector a patch."""

    def __init__(self, config: SiglipVisionConfig, activation: str) -> None:
        super().__init__()
        width, size = config.width, config.patch_size
        self.conv1 = nn.Conv2d(3, width, kernel_size=size, stride=size)
        self.positional_embedding = nn.Parameter(torch.empty(config.grid[0] * config.grid[1], width))
        self.transformer = Transformer(
            width, config.layers, config.heads, activation, config.hidden, SIGLIP_EPS
        )
        self.ln_post = nn.LayerNorm(width, SIGLIP_EPS)
        self.pool = AttentionPool(width, config.heads, config.hidden, activation)

    def enter(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b l k"]:
        return self.conv1(x).flatten(2).transpose(1, 2) + self.positional_embedding

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        joint = self.pool(self.ln_post(tokens))
        return joint[:, 0], joint[:, 1:]


class SiglipTextTower(nn.Module):
    """Embeddings of the whole context, padding among them -> the projected state at its last position."""

    causal = False
    reads_last = True  # at the last position of the context, not at EOT

    def __init__(self, config: SiglipTextConfig, embed_dim: int, activation: str) -> None:
        super().__init__()
        # from_pretrained skips the random start, which on the meta device imports the whole compiler
        self.token_embedding = nn.Embedding.from_pretrained(torch.empty(config.vocab_size, config.width))
        self.positional_embedding = nn.Parameter(torch.empty(config.context_length, config.width))
        self.transformer = Transformer(
            config.width, config.layers, config.heads, activation, config.hidden, SIGLIP_EPS
        )
        self.ln_final = nn.LayerNorm(config.width, SIGLIP_EPS)
        self.text_head = nn.Linear(config.width, embed_dim)

    def project(self, last: Float[Tensor, "*n w"]) -> Float[Tensor, "*n d"]:
        return self.text_head(self.ln_final(last))

    def forward(self, embeddings: Float[Tensor, "n l w"], lengths: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """`lengths` count for nothing: the last position is read, whatever is there."""
        x = embeddings.to(self.positional_embedding.dtype) + self.positional_embedding
        return self.project(self.transformer(x, causal=False)[:, -1])
