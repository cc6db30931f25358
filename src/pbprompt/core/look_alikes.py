"""Photographs that are nearly the same picture: a burst, a shelf seen twice, a resized copy.

A photograph judged by its own look-alikes is judged too kindly: those that nobody has labelled yet have none.
Image j is a look-alike of image i of its class if it is less than half as far from i as the class's images
are on the average, in squared distance:

    G_i = {i} ∪ {j : y_j = y_i, ‖x_i − x_j‖² < ½ · mean over k ≠ i of the class of ‖x_i − x_k‖²}

Distances among independent images of one class differ little in many dimensions, so that few are so near.
Where a class has hundreds of images, in several styles say, many may be; the nearest fifteen are then enough,
for to leave a whole style out would judge the model by images of which it has seen nothing.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

NEAR = 0.5
MOST = 15


class Alike(NamedTuple):
    """Of each image its look-alikes, itself among them."""

    means: Float[Tensor, "n d"]
    sizes: Float[Tensor, " n"]
    """how often they count together"""
    weights: Float[Tensor, " n"]
    """how often the image itself counts"""

    @classmethod
    def none(cls, images: Float[Tensor, "n d"], weights: Float[Tensor, " n"] | None = None) -> "Alike":
        """Every image stands for itself."""
        weights = images.new_ones(len(images)) if weights is None else weights.to(images)
        return cls(images, weights, weights)

    def at(self, rows: Int[Tensor, " m"]) -> "Alike":
        return Alike(*(part[rows] for part in self))


def look_alikes(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], weights: Float[Tensor, " n"] | None = None
) -> Alike:
    """Class by class, so that no table of all pairs is made. `weights`: how often each image counts."""
    alone = Alike.none(images, weights)
    means, sizes, weights = images.clone(), alone.sizes.clone(), alone.weights
    order = labels.argsort(stable=True)
    for rows in order.split(labels.bincount().tolist()):
        if len(rows) > 2:  # of two images neither is nearer than the average
            own = images[rows]
            squared = torch.cdist(own, own).square()
            near = squared < NEAR * squared.sum(1, keepdim=True) / (len(rows) - 1)
            if len(rows) > MOST + 1:
                near &= squared <= squared.fill_diagonal_(-1).kthvalue(MOST + 1, dim=1, keepdim=True).values
            member = near.fill_diagonal_(True) * weights[rows]
            sizes[rows] = member.sum(1)
            means[rows] = member @ own / member.sum(1, keepdim=True)
    return Alike(means, sizes, weights)
