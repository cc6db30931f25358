"""Gaussian discriminant analysis with one covariance, shrunk for few images (Wang et al., ICLR 2024).

    μ_c = mean of class c          Σ̂ = cov(x_i − μ_{y_i})          P = d·((N − 1)·Σ̂ + tr(Σ̂)·I)⁻¹
    w_c = P μ_c                    b_c = −½ μ_cᵀ P μ_c

| symbol | name here   | meaning                                              |
|--------|-------------|------------------------------------------------------|
| x, y   | `x`         | N features of d numbers, and their labels            |
| P      | `precision` | the shrunk inverse covariance (Kubokawa & Srivastava) |
| w, b   |             | the classifier under equal class frequencies         |

With one image per class Σ̂ is zero and says nothing. The spread of the class means about their own mean then
takes its place: the shape is that of the classes, the only spread there is to see.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.rivals.logistic import Affine


def places_in_class(labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Which of its class each image is, from 0, in the order given."""
    order, sizes = labels.argsort(stable=True), labels.bincount()
    places = torch.empty_like(labels)
    places[order] = torch.arange(len(labels)).to(labels) - (sizes.cumsum(0) - sizes)[labels[order]]
    return places


def class_means(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Float[Tensor, "c d"]:
    """The mean of every class 0 to the largest label, each of which has an image."""
    members = F.one_hot(labels).to(x)
    return members.T @ x / members.sum(0).unsqueeze(1)


def shrunk_precision(deviations: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """P of deviations that sum to zero; zero where none deviates."""
    n, d = deviations.shape
    scatter = deviations.T @ deviations  # (N − 1)·Σ̂
    trace = scatter.trace() / max(1, n - 1)
    if not trace > 0:
        return torch.zeros_like(scatter)
    scatter.diagonal().add_(trace)
    return d * torch.cholesky_inverse(torch.linalg.cholesky(scatter))


def gaussian_discriminant(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Affine:
    """The linear classifier of classes 0 to the largest label, each of which has an image."""
    means = class_means(x, labels)
    deviations = x - means[labels]
    if len(x) == len(means):
        deviations = means - means.mean(0)
    weights = means @ shrunk_precision(deviations)
    return Affine(weights, -0.5 * (weights * means).sum(1))
