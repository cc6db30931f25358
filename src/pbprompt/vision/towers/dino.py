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

from pbprompt.vision.towers.layers import Block, PatchConfig, Seen, attend
from pbprompt.vision.towers.rotary import RotaryTower, grid_places


@dataclass(frozen=True)
class DinoConfig(PatchConfig):
    """Sizes of the tower. `gated`: its MLPs are SwiGLU; `rope_theta`: None where positions are learned."""

    hidden: int
    registers: int = 0
    gated: bool = False
    rope_theta: float | None = None
    eps: float = 1e-6


class SwiGlu(nn.Module):
    """c_proj(silu(gate(x))·c_fc(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden)
        self.c_fc = nn.Linear(width, hidden)
        self.c_proj = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        return self.c_proj(F.silu(self.gate(x)) * self.c_fc(x))


class DinoTower(RotaryTower):
    """Image -> the class token and one token a patch, each behind the last norm."""

    def __init__(self, config: DinoConfig) -> None:
        super().__init__(config, positions=config.rope_theta is None)
        self.config = config
        self.register_embedding = nn.Parameter(torch.empty(config.registers, config.width))
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.ln_post = nn.LayerNorm(config.width, config.eps)
        if config.rope_theta is not None:
            self.register_buffer("turns", _turns(config, config.rope_theta), persistent=False)

    def enter(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b l k"]:
        tokens = super().enter(x)
        registers = self.register_embedding.expand(x.shape[0], -1, -1)
        return torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)

    def attend(self, qkv: Float[Tensor, "b l w3"], heads: int) -> Float[Tensor, "b l w"]:
        return attend(qkv, heads) if self.config.rope_theta is None else super().attend(qkv, heads)

    def across(self, x: Float[Tensor, "b h l e"]) -> Float[Tensor, "b h l e"]:
        one, other = x.chunk(2, dim=-1)
        return torch.cat([-other, one], dim=-1)

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        seen = self.ln_post(tokens)
        return seen[:, 0], seen[:, 1 + self.config.registers :]


def _turns(config: DinoConfig, theta: float) -> Float[Tensor, "2 l e"]:
    """Cosines and sines of the angles of every token, in the first half of a head as in the second; class
    token and registers have no place. In float32, as the authors compute them."""
    e, side = config.width // config.heads, config.grid[0]
    centres = 2 * (grid_places(side).float() + 0.5) / side - 1
    frequencies = theta ** -torch.arange(0, 1, 4 / e, device="cpu")
    angles = (2 * math.pi * centres.unsqueeze(-1) * frequencies).flatten(1).repeat(1, 2)
    angles = F.pad(angles, (0, 0, 1 + config.registers, 0))
    return torch.stack([angles.cos(), angles.sin()])


def _block(config: DinoConfig) -> Block:
    block = Block(config.width, config.heads, "gelu", config.hidden, config.eps)
    if config.gated:
        block.mlp = SwiGlu(config.width, config.hidden)  # type: ignore[assignment]
    return block
