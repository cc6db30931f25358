"""Rotary positions in two dimensions, which EVA-02 and PE-Core have beside learned ones.

A query or key of a token at (p, q) is turned in each pair of its channels: the first half of the pairs by
p·θ_k, the second by q·θ_k, with θ_k = 10000^(−k/K), k = 0 … K−1, and K a quarter of a head's width. A token
at (0, 0), such as the class token, is left as it is.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.layers import BlockTower, merge_heads, split_heads

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

    turns: Tensor

    def rotation(self, tokens: Float[Tensor, "b l w"]) -> Tensor:
        return self.turns

    def attend(self, qkv: Float[Tensor, "b l w3"], heads: int, turns: Tensor | None) -> Tensor:
        assert turns is not None
        more = (0, 0, 0, qkv.shape[1] - turns.shape[1])
        cosines, sines = F.pad(turns[0], more, value=1.0), F.pad(turns[1], more)
        return attend_turned(qkv, heads, torch.stack([cosines, sines]))


def attend_turned(
    projected: Float[Tensor, "n l w3"], heads: int, table: Float[Tensor, "2 l e"]
) -> Float[Tensor, "n l w"]:
    """Attention of every token to every token, with queries and keys turned."""
    q, k, v = (split_heads(part, heads) for part in projected.chunk(3, dim=-1))
    return merge_heads(F.scaled_dot_product_attention(_turn(q, table), _turn(k, table), v))


def _turn(x: Float[Tensor, "n h l e"], table: Float[Tensor, "2 l e"]) -> Float[Tensor, "n h l e"]:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    across = torch.stack([-odd, even], dim=-1).flatten(-2)
    return x * table[0] + across * table[1]
