"""CLIP's vision transformer, under OpenAI's key names."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.vision.towers.layers import BlockTower, PatchConfig, Seen, Transformer


@dataclass(frozen=True)
class VitConfig(PatchConfig):
    """Sizes of a vision transformer; `hidden` is the width inside its MLPs, 4·width where it is not given."""

    hidden: int | None = None


class VisionTransformer(BlockTower):
    """Image -> the projected class token followed by the projected patch tokens.

    The final LayerNorm and the projection, which CLIP applies to the class token alone, are applied to
    every token: that puts the patches into the joint space.
    """

    def __init__(self, config: VitConfig, embed_dim: int, activation: str) -> None:
        super().__init__(config, bias=False)
        width = config.width
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, config.layers, config.heads, activation, config.hidden)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        joint = self.ln_post(tokens) @ self.proj
        return joint[:, 0], joint[:, 1:]
