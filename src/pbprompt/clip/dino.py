"""DINOv2's and DINOv3's image towers, which have no text tower beside them.

    tokens = [class, registers, patches] (+ learned positions: DINOv2)
    x = x + out(attention(ln(x))),  x = x + mlp(ln(x))          queries and keys of patches are turned: DINOv3
    image: ln(x)[class],  patches: ln(x)[patches]

| symbol | meaning                                                                                       |
|--------|-----------------------------------------------------------------------------------------------|
| turned | by the angles 2π·y·f_k and 2π·x·f_k, with (y, x) a patch's centre in [−1, 1], f_k = θ^(−4k/e)  |
| e      | width of a head; θ is `rope_theta`                                                            |

LayerScale, a factor on each channel of what a block adds, is folded into the matrices before it when weights
are loaded. So is the choice of an image size into DINOv2's positions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.clip.layers import Block, BlockTower, Seen, SquarePatches, merge_heads, split_heads


@dataclass(frozen=True)
class DinoConfig(SquarePatches):
    """Sizes of the tower. `gated`: its MLPs are SwiGLU; `rope_theta`: None where positions are learned."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    hidden: int
    registers: int = 0
    gated: bool = False
    rope_theta: float | None = None
    eps: float = 1e-6


class GatedMlp(nn.Module):
    """c_proj(silu(gate(x))·c_fc(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden)
        self.c_fc = nn.Linear(width, hidden)
        self.c_proj = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        return self.c_proj(F.silu(self.gate(x)) * self.c_fc(x))


class DinoTower(BlockTower):
    """Image -> the class token and one token a patch, each behind the last norm."""

    def __init__(self, config: DinoConfig) -> None:
        super().__init__()
        width, size = config.width, config.patch_size
        self.config = config
        self.conv1 = nn.Conv2d(3, width, kernel_size=size, stride=size)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.register_embedding = nn.Parameter(torch.empty(config.registers, width))
        if config.rope_theta is None:
            self.positional_embedding = nn.Parameter(torch.empty(config.grid[0] * config.grid[1] + 1, width))
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.ln_post = nn.LayerNorm(width, config.eps)

    def enter(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b l k"]:
        patches = self.conv1(x).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(x.shape[0], 1, -1)
        if self.config.rope_theta is None:
            first = first + self.positional_embedding[:1]
            patches = patches + self.positional_embedding[1:]
        registers = self.register_embedding.expand(x.shape[0], -1, -1)
        return torch.cat([first, registers, patches], dim=1)

    def rotation(self, tokens: Float[Tensor, "b l w"]) -> Tensor | None:
        return None if self.config.rope_theta is None else rotations(self.config, tokens)

    def attend(self, qkv: Float[Tensor, "b l w3"], heads: int, turns: Tensor | None) -> Tensor:
        q, k, v = (split_heads(part, heads) for part in qkv.chunk(3, dim=-1))
        if turns is not None:
            before = 1 + self.config.registers
            q, k = _turned(q, turns, before), _turned(k, turns, before)
        return merge_heads(F.scaled_dot_product_attention(q, k, v))

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        seen = self.ln_post(tokens)
        return seen[:, 0], seen[:, 1 + self.config.registers :]


def rotations(config: DinoConfig, like: Tensor) -> Float[Tensor, "2 m e"]:
    """Cosines and sines of the angles of every patch, in the first half of a head as in the second."""
    e, side = config.width // config.heads, config.grid[0]
    centres = 2 * (torch.arange(side, dtype=torch.float32, device=like.device) + 0.5) / side - 1
    places = torch.stack(torch.meshgrid(centres, centres, indexing="ij"), dim=-1).flatten(0, 1)
    frequencies = (config.rope_theta or 1.0) ** -torch.arange(0, 1, 4 / e, device=like.device)
    angles = (2 * math.pi * places.unsqueeze(-1) * frequencies).flatten(1).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()]).to(like.dtype)


def _block(config: DinoConfig) -> Block:
    block = Block(config.width, config.heads, "gelu", config.hidden, config.eps)
    if config.gated:
        block.mlp = GatedMlp(config.width, config.hidden)  # type: ignore[assignment]
    return block


def _turned(
    x: Float[Tensor, "b h l e"], turns: Float[Tensor, "2 m e"], before: int
) -> Float[Tensor, "b h l e"]:
    """The patches turned; class token and registers before them, and a method's tokens behind, have no
    place."""
    patches, behind = x[:, :, before : before + turns.shape[1]], x[:, :, before + turns.shape[1] :]
    one, other = patches.chunk(2, dim=-1)
    turned = patches * turns[0] + torch.cat([-other, one], dim=-1) * turns[1]
    return torch.cat([x[:, :, :before], turned, behind], dim=2)
