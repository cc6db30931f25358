"""Rotary positions in two dimensions: EVA-02 and PE-Core have them beside learned ones, DINOv3 instead.

A query or key of a token at (p, q) is turned in each pair of its channels: the first half of the pairs by
p·θ_k, the second by q·θ_k. A token at (0, 0), such as the class token, is left as it is.

| symbol | EVA-02 and PE-Core                    | DINOv3 (`vision/towers/dino.py`)                  |
|--------|---------------------------------------|------------------------------------------|
| pair   | two channels side by side             | a channel and that half a head further   |
| θ_k    | 10000^(−k/K), K a quarter of a head   | 2π·θ^(−k/K)                              |
| (p, q) | of a patch in the grid                | of a patch's centre, in [−1, 1]          |
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt.vision.towers.layers import BlockTower, merge_heads, split_heads

BASE = 10000.0


def grid_places(side: int) -> Float[Tensor, "m 2"]:
    """Row and column of every patch, in the order in which a tower reads them."""
    # not on the meta device, where towers are laid out: these values are computed, not loaded
    along = torch.arange(side, dtype=torch.float64, device="cpu")
    return torch.cartesian_prod(along, along)


def rotary_table(places: Float[Tensor, "m 2"], per_head: int) -> Float[Tensor, "2 m e"]:
    """Cosines and sines of the turns of every token, each angle for both channels of its pair."""
    pairs = per_head // 4
    speeds = BASE ** (-torch.arange(pairs, dtype=torch.float64, device="cpu") / pairs)
    angles = (places.unsqueeze(-1) * speeds).flatten(1).repeat_interleave(2, dim=-1)
    return torch.stack([angles.cos(), angles.sin()])


class RotaryTower(BlockTower):
    """A tower whose queries and keys are turned by a table; a method's tokens have no place and stay."""

    turns: Tensor  # [2, l, e]

    def attend(self, qkv: Float[Tensor, "b l w3"], heads: int) -> Float[Tensor, "b l w"]:
        q, k, v = (split_heads(part, heads) for part in qkv.chunk(3, dim=-1))
        more = (0, 0, 0, qkv.shape[1] - self.turns.shape[1])
        cosines, sines = F.pad(self.turns[0], more, value=1.0), F.pad(self.turns[1], more)
        q, k = (x * cosines + self.across(x) * sines for x in (q, k))
        return merge_heads(F.scaled_dot_product_attention(q, k, v))

    def across(self, x: Float[Tensor, "b h l e"]) -> Float[Tensor, "b h l e"]:
        """x with each pair of its channels turned by a quarter."""
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([-odd, even], dim=-1).flatten(-2)
