"""PE-Core's image tower (Perception Encoder); its text tower is CLIP's.

CLIP's vision transformer with rotary positions beside the learned ones, pooled by attention with a learned
query, as SigLIP's is. The largest has no class token.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.vision.towers.layers import CLIP_EPS, PatchConfig, Seen, Transformer
from pbprompt.vision.towers.rotary import RotaryTower, grid_places, rotary_table
from pbprompt.vision.towers.siglip import AttentionPool

POOL_HEADS = 8


@dataclass(frozen=True)
class PerceptionConfig(PatchConfig):
    """Sizes of the image tower; `hidden` is the width inside its MLPs, `pool_hidden` inside the pool's."""

    hidden: int
    pool_hidden: int
    class_token: bool


class PerceptionTower(RotaryTower):
    """Image -> the pooled vector and one vector a patch, projected.

    PE-Core defines no patches in the joint space. As with SigLIP, a patch is what the pool would give if it
    saw that patch alone; these are ours.
    """

    def __init__(self, config: PerceptionConfig, embed_dim: int, activation: str) -> None:
        super().__init__(config, bias=False, class_token=config.class_token)
        width = config.width
        self.before = 1 + config.class_token  # rows before the patches: the image, and the class token's
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, config.layers, config.heads, activation, config.hidden)
        self.ln_post = nn.LayerNorm(width)
        self.attn_pool = AttentionPool(width, POOL_HEADS, config.pool_hidden, activation, CLIP_EPS)
        self.head = nn.Linear(width, embed_dim)
        places = grid_places(config.grid[0]).flip(-1)  # column first, then row
        if config.class_token:
            places = F.pad(places + 1, (0, 0, 1, 0))  # the class token is at (0, 0), the patches behind it
        self.register_buffer("turns", rotary_table(places, width // config.heads), persistent=False)

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        joint = self.head(self.attn_pool(self.ln_post(tokens)))
        return joint[:, 0], joint[:, self.before :]
