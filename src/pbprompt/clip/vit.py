"""CLIP's vision transformer, under OpenAI's key names."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.clip.layers import BlockTower, Seen, SquarePatches, Transformer


@dataclass(frozen=True)
class VitConfig(SquarePatches):
    """Sizes of a vision transformer; `hidden` is the width inside its MLPs, 4·width where it is not given;
    `channels` are those of what it looks at."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    hidden: int | None = None
    channels: int = 3


class VisionTransformer(BlockTower):
    """Image -> the projected class token followed by the projected patch tokens.

    The final LayerNorm and the projection, which CLIP applies to the class token alone, are applied to
    every token: that puts the patches into the joint space.
    """

    def __init__(self, config: VitConfig, embed_dim: int, activation: str) -> None:
        super().__init__()
        width, size = config.width, config.patch_size
        tokens = config.grid[0] * config.grid[1] + 1
        self.conv1 = nn.Conv2d(config.channels, width, kernel_size=size, stride=size, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(tokens, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, config.layers, config.heads, activation, config.hidden)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def enter(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l k"]:
        patches = self.conv1(x).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(x.shape[0], 1, -1)  # len() would fix the batch of an export
        return self.ln_pre(torch.cat([first, patches], dim=1) + self.positional_embedding)

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        joint = self.ln_post(tokens) @ self.proj
        return joint[:, 0], joint[:, 1:]
