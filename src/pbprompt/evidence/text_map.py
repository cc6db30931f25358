"""What classes with photographs teach about where the images of a name lie.

    x̄_c − b ≈ a t̃_c + t̃_c R            R = (BᵀB + λ I)⁻¹ Bᵀ D,  D_c = (x̄_c − b) − a t̃_c
    t̂_c = t̄ + l · unit(a t̃_c + t̃_c R)   a name that has no photograph
    t̂_c = t̄ + l · unit(a t̃_c + t̃_c R₋c)  one that has: its own photographs are left out

| symbol | meaning                                                                                     |
|--------|---------------------------------------------------------------------------------------------|
| t̃_c    | text feature of a class, less the mean t̄ over the classes with photographs; rows of B       |
| a      | Σ_c t̃_c·(x̄_c − b) / Σ_c ‖t̃_c‖²; where it is not above 0, R is 0 and names keep their direction |
| λ      | 40 (1 + 2/n) times the mean ‖t̃_c‖², n the harmonic mean of n_c: before some forty classes are   |
|        | seen, and more where their means rest on few photographs, a t̃_c has most of the say          |
| l      | root mean square of ‖t̃_c‖: names of equal length, so that none is favoured by its own        |

A name with photographs must say no more of its class than one without would, or it would count them twice.
Leaving a class out of a ridge regression is exact and costs nothing:

    t̃_c R₋c = D_c − (D_c − t̃_c R)/(1 − h_c),   h_c = t̃_cᵀ (BᵀB + λ I)⁻¹ t̃_c
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

WORTH = 40.0  # classes that the plain direction of a name is worth


class TextMap(NamedTuple):
    """How names are moved; made of the classes with photographs."""

    centre: Float[Tensor, " d"]
    gain: Float[Tensor, ""]
    learned: Float[Tensor, "d d"]
    """R"""
    length: Float[Tensor, ""]


def learn_text_map(
    means: Float[Tensor, "k d"], counts: Float[Tensor, " k"], texts: Float[Tensor, "k d"]
) -> tuple[TextMap, Float[Tensor, "k d"]]:
    """From each class's mean photograph, how many there are, and its text; with t̂ of these classes."""
    centre = texts.mean(0)
    names, means = texts - centre, means - means.mean(0)
    size = names.square().sum() / len(names)
    gain = (names * means).sum() / (size * len(names)).clamp(min=1e-30)
    learned, held_out = torch.zeros_like(means.T @ means), torch.zeros_like(names)
    if size <= 1e-12 or gain <= 0:
        gain = torch.ones_like(gain)
    else:
        left_over = means - gain * names
        worth = WORTH * (1 + 2 * (1 / counts).mean())
        ridge = names.T @ names + worth * size * torch.eye(len(centre)).to(names)
        solved = torch.linalg.solve(ridge, names.T)
        learned = solved @ left_over
        leverage = (names * solved.T).sum(1, keepdim=True)
        held_out = left_over - (left_over - names @ learned) / (1 - leverage)
    made = TextMap(centre, gain, learned, size.sqrt())
    return made, _placed(made, gain * names + held_out)


def move(text_map: TextMap, texts: Float[Tensor, "c d"]) -> Float[Tensor, "c d"]:
    """t̂ of names without photographs."""
    names = texts - text_map.centre
    return _placed(text_map, text_map.gain * names + names @ text_map.learned.to(names))


def _placed(text_map: TextMap, moved: Float[Tensor, "c d"]) -> Float[Tensor, "c d"]:
    length = moved.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return text_map.centre + text_map.length * moved / length
