"""Photographs as they are, for classes that hold many things each: kernel regression, and the nearest one.

    k(x, x') = exp(−‖x − x'‖² / 2h)                h = 0.2 of the median squared distance of two photographs
    R_c(x) = Σ_i k(x, x_i) α_ic                    α = A (Y − 1/K),   A = (k(X, X) + λ diag(1/w))⁻¹
    Q_c(x) = max_{i ∈ c} ln k(x, x_i)              the mean over the other classes where c has no photograph

| symbol   | name here      | meaning                                                               |
|----------|----------------|-----------------------------------------------------------------------|
| X, Y     | `photographs`  | photographs of length 1, and 1 where one is of a class, else 0        |
| α        | `coefficients` | [n, K]                                                                |
| w        | `weights`      | how often each photograph counts                                      |
| λ        | `RIDGE`        | the noise of a label                                                  |

R_c is near 1 − 1/K among photographs of the class and falls to 0 far from all. A photograph that is left out,
alone or with all others G of its class, is judged exactly, since A knows the way (h stays as it is):

    R⁻ⁱ(x_i) = Y_i − 1/K − α_i / A_ii              R⁻ᴳ(x_i) = Y_i − 1/K − (A_GG⁻¹ α_G)_i

A photograph whose label is only likely has its probabilities in Y (`evidence/unlabelled.py`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

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

    def scores(self, images: Float[Tensor, "b d"]) -> Float[Tensor, "2 b k"]:
        """R_c and Q_c of images of length 1."""
        similar = log_kernel(images, self.photographs, self.bandwidth)
        classes = self.coefficients.shape[1]
        return torch.stack([similar.exp() @ self.coefficients, nearest(similar, self.labels, classes)])


def log_kernel(
    x: Float[Tensor, "b d"], y: Float[Tensor, "n d"], bandwidth: Float[Tensor, ""]
) -> Float[Tensor, "b n"]:
    """ln k of features of length 1: ‖x − x'‖² = 2 − 2 x·x'."""
    return (x @ y.T - 1) / bandwidth


def nearest(similar: Float[Tensor, "b n"], labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, "b k"]:
    """Q_c, from ln k of images and photographs; −∞ of those that do not count."""
    none = torch.full_like(similar[:, :1], -torch.inf).expand(-1, classes)
    best = none.scatter_reduce(1, labels.expand_as(similar), similar, "amax")
    has = best > -torch.inf
    known = torch.where(has, best, 0)
    return torch.where(has, best, known.sum(1, keepdim=True) / has.sum(1, keepdim=True).clamp(min=1))


def fit_kernel(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int, weights: Float[Tensor, " n"]
) -> tuple[Kernel, Float[Tensor, "2 n k"], Float[Tensor, "n k"]]:
    """From photographs of length 1, in float64; with R_c and Q_c of each without it, and R_c without all of
    its class."""
    bandwidth = bandwidth_of(images)
    similar = log_kernel(images, images, bandwidth)
    itself = similar.diagonal().clone()
    others = nearest(similar.fill_diagonal_(-torch.inf), labels, classes)
    similar.diagonal().copy_(itself)
    inverse = inverse_kernel(similar, weights)
    targets = F.one_hot(labels, classes).to(images)
    kernel = Kernel(images, labels, inverse @ (targets - 1 / classes), bandwidth)
    alone = targets - 1 / classes - kernel.coefficients / inverse.diagonal().unsqueeze(1)
    without_class = torch.empty_like(targets)
    for rows in labels.argsort(stable=True).split(labels.bincount().tolist()):
        if len(rows):
            without_class[rows] = without_group(kernel, inverse, rows)
    return kernel, torch.stack([alone, others]), without_class


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
