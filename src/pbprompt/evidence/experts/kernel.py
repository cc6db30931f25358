"""Photographs as they are, for classes that hold many things each: kernel ridge regression on the labels, and
the nearest photograph of each class.

    k(x, x') = exp(−‖x − x'‖² / 2h)                h = 0.2 of the median squared distance of two photographs
    Q_c(x) = max_{i ∈ c} ln k(x, x_i)
    R_c(x) = Σ_i k(x, x_i) α_ic                    α = A (Y − 1/K),   A = (k(X, X) + λ diag(1/w))⁻¹

| symbol   | name here      | meaning                                                               |
|----------|----------------|-----------------------------------------------------------------------|
| X, Y     | `photographs`  | photographs of length 1, and 1 where one is of a class, else 0        |
| α        | `coefficients` | [n, K]                                                                |
| w        | `weights`      | how often each photograph counts                                      |
| λ        | `RIDGE`        | the noise of a label                                                  |

R_c is near 1 − 1/K among photographs of the class and falls to 0 far from all. A photograph that is left out,
alone or with others G (of its fold, or all of its class), is answered exactly, since A knows the way (h stays
as it is):

    R⁻ⁱ(x_i) = Y_i − 1/K − α_i / A_ii              R⁻ᴳ(x_i) = Y_i − 1/K − (A_GG⁻¹ α_G)_i

A photograph whose label is only likely has its probabilities in Y (`unlabelled.py`).

Where a class has no photograph, Q_c is the mean over the other classes; of a photograph that is left out, the
nearest of those that are left.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.expert import HeldOut, Kind, Photographs, Seen

BANDWIDTH = 0.2
RIDGE = 0.1
PAIRED = 1024  # photographs of which the median distance is taken
FLOOR = 1e-6  # of h: all photographs may be equal


class Kernel(NamedTuple):
    """What tells the classes by single photographs."""

    photographs: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    coefficients: Float[Tensor, "n k"]
    bandwidth: Float[Tensor, ""]

    def scores(self, images: Seen) -> Float[Tensor, "b k"]:
        """R_c of images of length 1."""
        return log_kernel(images.global_, self.photographs, self.bandwidth).exp() @ self.coefficients

    def slopes(self, centre: Float[Tensor, " d"]) -> Float[Tensor, "k d"]:
        similar = log_kernel(centre.unsqueeze(0), self.photographs, self.bandwidth).exp()
        return self.coefficients.T @ (similar.T * self.photographs) / self.bandwidth

    def closeness(self, scores: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        return scores.amax(1)


def log_kernel(
    x: Float[Tensor, "b d"], y: Float[Tensor, "n d"], bandwidth: Float[Tensor, ""]
) -> Float[Tensor, "b n"]:
    """ln k of features of length 1: ‖x − x'‖² = 2 − 2 x·x'."""
    return (x @ y.T - 1) / bandwidth


def fit(photographs: Photographs) -> tuple[Kernel, HeldOut]:
    """In float64."""
    images, labels, classes = photographs.images, photographs.labels, photographs.classes
    bandwidth = bandwidth_of(images)
    inverse = inverse_kernel(log_kernel(images, images, bandwidth), photographs.shares)
    targets = F.one_hot(labels, classes).to(images)
    kernel = Kernel(images, labels, inverse @ (targets - 1 / classes), bandwidth)
    alone = targets - 1 / classes - kernel.coefficients / inverse.diagonal().unsqueeze(1)
    without_class = torch.empty_like(targets)
    for rows in labels.argsort(stable=True).split(labels.bincount().tolist()):
        if len(rows):
            without_class[rows] = without_group(kernel, inverse, rows)
    others = without_class.masked_fill(photographs.own, -torch.inf).amax(1)
    scores = alone.clone()
    for gone, asked in photographs.folds:
        scores[asked] = without_group(kernel, inverse, gone)[torch.isin(gone, asked)]
    return kernel, HeldOut(scores, alone.amax(1), others)


EXPERT = Kind(fit, Kernel, says="photographs", usual=2.0, only_beyond=False)


def bandwidth_of(images: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """h"""
    some = images[:: max(1, len(images) // PAIRED)]
    pairs = (2 - 2 * some @ some.T)[tuple(torch.triu_indices(len(some), len(some), 1))]
    median = pairs.median() if len(pairs) else images.new_zeros(())
    return (BANDWIDTH * median).clamp(min=FLOOR)


def inverse_kernel(similar: Float[Tensor, "n n"], weights: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """A, in float64, from ln k of the photographs, which is lost."""
    kernel = similar.exp_()
    kernel.diagonal().add_(RIDGE / weights)
    return torch.cholesky_inverse(torch.linalg.cholesky(kernel))


def without_group(
    kernel: Kernel, inverse: Float[Tensor, "n n"], rows: Int[Tensor, " g"]
) -> Float[Tensor, "g k"]:
    """R⁻ᴳ of labelled photographs G of a kernel, from its A."""
    block = torch.linalg.cholesky(inverse[rows][:, rows])
    classes = kernel.coefficients.shape[1]
    own = F.one_hot(kernel.labels[rows], classes).to(inverse)
    return own - 1 / classes - torch.cholesky_solve(kernel.coefficients[rows], block)


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


def fit_nearest(photographs: Photographs) -> tuple[Nearest, HeldOut]:
    x, labels = photographs.images, photographs.labels
    classes = torch.arange(photographs.classes, device=labels.device)
    made = Nearest(x, labels, bandwidth_of(x), classes)
    others = log_kernel(x, x, made.bandwidth).fill_diagonal_(-torch.inf)
    for gone, asked in photographs.folds:
        others[asked] = others[asked].index_fill(1, gone, -torch.inf)
    return made, HeldOut(nearest(others, labels, len(classes)))


NEAREST = Kind(fit_nearest, Nearest, says="photographs", usual=1.0)


def nearest(similar: Float[Tensor, "b n"], labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, "b k"]:
    """Q_c, from ln k of images and photographs; −∞ of those that do not count."""
    none = torch.full_like(similar[:, :1], -torch.inf).expand(-1, classes)
    best = none.scatter_reduce(1, labels.expand_as(similar), similar, "amax")
    has = best > -torch.inf
    known = torch.where(has, best, 0)
    return torch.where(has, best, known.sum(1, keepdim=True) / has.sum(1, keepdim=True).clamp(min=1))
