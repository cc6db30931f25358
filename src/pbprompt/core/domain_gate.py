"""How far an image is left to the names, because it looks like none of the photographs.

    g = √I · (1 − min(1, p/0.1))

p is the chance that an image of these classes lies as far from the nearest of them, by Student's t around
the left-out photographs; I is the share of ln K that names alone tell. So g is 0 for images that look like
the photographs and grows where one is farther off than nine in ten are (a drawing, where they are photos),
as far as names tell anything.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

UNTYPICAL = 0.1


def share_of_names(
    nearest: Float[Tensor, " b"], usual: Float[Tensor, " n"], information: Float[Tensor, ""]
) -> Float[Tensor, " b"]:
    """g of images by their distance to the nearest class, and that of left-out photographs."""
    n = len(usual)
    deviation = usual.std().clamp(min=1e-9) * math.sqrt(1 + 1 / n)
    tail = student_tail((nearest - usual.mean().float()) / deviation.float(), n - 1)
    return information.float().sqrt() * (1 - (tail / UNTYPICAL).clamp(max=1))


def student_tail(value: Float[Tensor, " b"], freedom: int) -> Float[Tensor, " b"]:
    """P(t > value), by Wallace's normal approximation, which exported models can hold too."""
    size = (8 * freedom + 1) / (8 * freedom + 3) * (freedom * (1 + value.square() / freedom).log()).sqrt()
    return 0.5 * (1 - torch.erf(value.sign() * size / math.sqrt(2)))
