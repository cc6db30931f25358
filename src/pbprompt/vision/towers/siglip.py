"""SigLIP's image tower (SigLIP 2's of a fixed resolution is the same), pooled by attention.

    f = m + mlp(ln(m)),  m = out(attention(probe; patches))        the probe is a learned query

Logits are exp(s)·cos(image, text) + b: the bias b is for the sigmoid reading and leaves a softmax as it is.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.vision.towers.layers import (
    SIGLIP_EPS,
    Attention,
    BlockTower,
    Mlp,
    PatchConfig,
    Seen,
    Transformer,
    merge_heads,
    split_heads,
)


@dataclass(frozen=True)
class SiglipVisionConfig(PatchConfig):
    """Sizes of the image tower; `hidden` is the width inside its MLPs."""

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
        queries, keys, values = (split_heads(part, self.attn.heads) for part in (q, k, v))
        seen = F.scaled_dot_product_attention(queries, keys, values)
        pooled = self.attn.out_proj(torch.cat([merge_heads(seen), v], dim=1))
        return pooled + self.mlp(self.ln_1(pooled))


class SiglipImageTower(BlockTower):
    """Image -> the pooled vector and one vector a patch."""

    def __init__(self, config: SiglipVisionConfig, activation: str) -> None:
        super().__init__(config, class_token=False)
        width, heads, hidden = config.width, config.heads, config.hidden
        self.transformer = Transformer(width, config.layers, heads, activation, hidden, SIGLIP_EPS)
        self.ln_post = nn.LayerNorm(width, SIGLIP_EPS)
        self.pool = AttentionPool(width, heads, hidden, activation)

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        joint = self.pool(self.ln_post(tokens))
        return joint[:, 0], joint[:, 1:]
