"""EVA-02-CLIP's image tower (sizes B and L); its text tower is CLIP's.

A vision transformer with rotary positions beside learned ones, a LayerNorm inside attention and MLP, and
gated MLPs:

    x ← x + out(ln(attention(ln(x)))),   x ← x + proj(ln(silu(gate(h)) ∘ up(h))),  h = ln(x)
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.vision.towers.layers import Block, PatchConfig, Seen
from pbprompt.vision.towers.rotary import RotaryTower, grid_places, rotary_table

EVA_EPS = 1e-6
TRAINED_SIDE = 16  # patches: the places of a finer or coarser grid are stretched to this one


@dataclass(frozen=True)
class EvaConfig(PatchConfig):
    """Sizes of the image tower; `hidden` is the width inside its MLPs."""

    hidden: int


class GatedMlp(nn.Module):
    """proj(ln(silu(gate(x)) ∘ up(x)))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden)
        self.up = nn.Linear(width, hidden)
        self.ln_inner = nn.LayerNorm(hidden, EVA_EPS)
        self.proj = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "n l w"]) -> Float[Tensor, "n l w"]:
        return self.proj(self.ln_inner(F.silu(self.gate(x)) * self.up(x)))


class EvaBlock(Block):
    """A block with one more norm in its attention and a gated MLP."""

    def __init__(self, config: EvaConfig) -> None:
        super().__init__(config.width, config.heads, "gelu", eps=EVA_EPS)
        self.ln_inner = nn.LayerNorm(config.width, EVA_EPS)
        self.mlp = GatedMlp(config.width, config.hidden)  # type: ignore[assignment]

    def inner(self, attended: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        return self.ln_inner(attended)


class EvaTower(RotaryTower):
    """Image -> the projected class token and the projected patch tokens, as with CLIP's."""

    def __init__(self, config: EvaConfig, embed_dim: int) -> None:
        super().__init__(config)
        width, side = config.width, config.grid[0]
        self.blocks = nn.ModuleList(EvaBlock(config) for _ in range(config.layers))
        self.ln_post = nn.LayerNorm(width, EVA_EPS)
        self.head = nn.Linear(width, embed_dim)
        places = F.pad(grid_places(side) * (TRAINED_SIDE / side), (0, 0, 1, 0))  # the class token at (0, 0)
        self.register_buffer("turns", rotary_table(places, width // config.heads), persistent=False)

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        joint = self.head(self.ln_post(tokens))
        return joint[:, 0], joint[:, 1:]
