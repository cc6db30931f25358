"""In which order an epoch goes through the training images, and how often it meets each.

Without weights an epoch is a permutation. With weights w_i of mean 1 it is systematic sampling: n points lie
at equal distances, from a random start, over the images laid end to end in random order, each as long as its
weight. Image i comes up ⌊w_i⌋ or ⌈w_i⌉ times and w_i times on the average, so that the expected gradient is
that of the weighted loss

    (1/n) Σ_i w_i loss_i

whatever the method's loss is.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def epoch_order(
    images: int, weights: Float[Tensor, " n"] | None, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """The rows of an epoch, one after the other."""
    order = torch.randperm(images, generator=generator)
    if weights is None:
        return order
    lengths = weights.cpu().double()[order]
    ends = (lengths * (images / lengths.sum())).cumsum(0)
    points = torch.arange(images, dtype=ends.dtype) + torch.rand(1, dtype=ends.dtype, generator=generator)
    met = torch.searchsorted(ends, points, right=True).clamp(max=images - 1)  # the last end is rounded
    return order[met][torch.randperm(images, generator=generator)]
