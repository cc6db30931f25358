"""The nearest photograph of each class: Q_c(x) = max_{i ∈ c} ln k(x, x_i).

k and h are those of `kernel.py`. Where a class has no photograph, Q_c is the mean over the other classes. A
photograph that is held out is answered by the nearest of those that are left.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.expert import HeldOut, Kind, Photographs, Seen
from pbprompt.evidence.experts.kernel import bandwidth_of, log_kernel


class Nearest(NamedTuple):
    """What tells the classes by the photograph that looks most alike."""

    photographs: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    bandwidth: Float[Tensor, ""]
    classes: Int[Tensor, " k"]
    """0 … K − 1"""

    def scores(self, images: Seen) -> Float[Tensor, "b k"]:
        similar = log_kernel(images.global_, self.photographs, self.bandwidth)
        return nearest(similar, self.labels, len(self.classes))

    def slopes(self, centre: Float[Tensor, " d"]) -> Float[Tensor, "k d"]:
        similar = log_kernel(centre.unsqueeze(0), self.photographs, self.bandwidth)
        own = self.labels == self.classes.unsqueeze(1)
        return self.photographs[torch.where(own, similar, -torch.inf).argmax(1)] / self.bandwidth

    def closeness(self, scores: Float[Tensor, "b k"]) -> None:
        return None


def fit(photographs: Photographs) -> tuple[Nearest, HeldOut]:
    x, labels = photographs.images, photographs.labels
    classes = torch.arange(photographs.classes, device=labels.device)
    made = Nearest(x, labels, bandwidth_of(x), classes)
    others = log_kernel(x, x, made.bandwidth).fill_diagonal_(-torch.inf)
    for gone, asked in photographs.folds:
        others[asked] = others[asked].index_fill(1, gone, -torch.inf)
    return made, HeldOut(nearest(others, labels, len(classes)))


EXPERT = Kind(fit, Nearest, says="photographs", usual=1.0)


def nearest(similar: Float[Tensor, "b n"], labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, "b k"]:
    """Q_c, from ln k of images and photographs; −∞ of those that do not count."""
    none = torch.full_like(similar[:, :1], -torch.inf).expand(-1, classes)
    best = none.scatter_reduce(1, labels.expand_as(similar), similar, "amax")
    has = best > -torch.inf
    known = torch.where(has, best, 0)
    return torch.where(has, best, known.sum(1, keepdim=True) / has.sum(1, keepdim=True).clamp(min=1))
