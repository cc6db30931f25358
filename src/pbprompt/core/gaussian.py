"""Prompts as prior, photographs as evidence: every class a Gaussian, all of one shape.

    μ_c ~ N(m_c, Σ/κ),  m_c = b + γ s Σ t̃_c                   what the name says before any photograph
    x | c ~ N(μ_c, Σ)                                         photographs of the class
    μ̂_c = (κ m_c + n_c x̄_c) / (κ + n_c)                      what both say together
    L_c(x) = −½ D_c(x) − ½ d ln ι_c                           ι_c = 1 + 1/(κ + n_c): log density of a new image
    D_c(x) = ‖x − μ̂_c‖²_P / ι_c

    Σ = (S + ν σ̄² I) / (N − K + ν),  S = Σ_i r_i r_iᵀ,  r_i = x_i − x̄_{y_i},  ν = d
    σ̄² = (tr S + ½ Σ_c ‖x̄_c − b‖² / (K − 1)) / (d (N − K + 1))
    s = max(0, Σ_c t̃_c·(x̄_c − b) / Σ_c t̃_cᵀ Σ t̃_c)

| symbol    | name here         | meaning                                                                   |
|-----------|-------------------|---------------------------------------------------------------------------|
| x, d      | `images`          | image features of length 1, in d dimensions                               |
| n_c, x̄_c  | `counts`, `means` | photographs of class c (at least one), and their mean                     |
| t̃_c       | `texts`           | text feature of class c, less the mean t̄ over the classes                 |
| b         | `centre`          | mean of the class means                                                   |
| Σ, P      | `covariance`      | within-class covariance, shrunk to a sphere; P is its inverse             |
| s, γ      | `slope`           | how far along Σ t̃ the classes lie, fitted; γ = 2 trusts the names more    |
| κ         | `KAPPA`           | how many photographs a name is worth                                      |

The linear part of L_c under m_c alone is the text classifier itself, and s → 0 where names mean nothing to the
backbone. σ̄² counts half of the spread of the class means as one more degree of freedom, which decides it where
every class has a single photograph.

S is diagonalised once; in its eigenbasis Σ and P are diagonal, so that everything after is a product of
matrices: O(N d² + d³ + N K d) in all, in float64.

Each photograph is also judged by the model without it, exactly, at the cost of one fit. With r = x_i − x̄_y and
an image that counts w times, all of x̄_y, b, t̄, S, σ̄², Σ, s and m change:

    x̄_y⁻ = x̄_y − w r/(n − w)         S⁻ = S − β r rᵀ          β = w n/(n − w)
    b⁻ = b − w r/((n − w) K)         (S⁻ + aI)⁻¹ = W + g W r rᵀ W,  W = (S + aI)⁻¹, g = β/(1 − β rᵀWr)

with a = ν σ̄⁻². A class whose only photograph is left out is known by its name alone, and leaves b and t̄
(β = 0). The result is that of really fitting without the image, to rounding; tests do that.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.statistics import Statistics

GAMMA = 2.0
KAPPA = 2.0
SHRINKAGE = 1.0  # ν / d
SPREAD = 0.5  # of the class means, as one degree of freedom within the classes
FLOOR = 1e-8  # of the variance, relative to an image's own square: all images may be equal


class Frame(NamedTuple):
    """The statistics and the names in the eigenbasis of S, where every covariance is diagonal."""

    basis: Float[Tensor, "d d"]
    spectrum: Float[Tensor, " d"]
    means: Float[Tensor, "k d"]
    counts: Float[Tensor, " k"]
    texts: Float[Tensor, "k d"]
    """not yet centred"""
    freedom: float
    """N − K"""
    floor: float

    @property
    def width(self) -> int:
        return len(self.spectrum)

    @property
    def centre(self) -> Float[Tensor, " d"]:
        return self.means.mean(0)

    @property
    def text_centre(self) -> Float[Tensor, " d"]:
        return self.texts.mean(0)


def make_frame(statistics: Statistics, texts: Float[Tensor, "k d"]) -> Frame:
    """Diagonalise S = Σ_i x_i x_iᵀ − Σ_c n_c x̄_c x̄_cᵀ; every class has photographs."""
    counts, sums, moment = statistics
    means = sums / counts.unsqueeze(1)
    spectrum, basis = torch.linalg.eigh(moment - sums.T @ means)
    images = float(counts.sum())
    floor = FLOOR * float(moment.diagonal().sum()) / images / len(spectrum)
    freedom = max(0.0, images - len(counts))
    return Frame(basis, spectrum.clamp(min=0), means @ basis, counts, texts.double() @ basis, freedom, floor)


def within_variance(
    frame: Frame,
    trace: Float[Tensor, "*n"],
    freedom: Float[Tensor, "*n"],
    between: Float[Tensor, "*n"],
    classes: Float[Tensor, "*n"],
) -> Float[Tensor, "*n"]:
    """σ̄² for tr S, N − K, Σ_c ‖x̄_c − b‖² and K; not below the floor."""
    spread = between / (classes - 1).clamp(min=1)
    return ((trace + SPREAD * spread) / (frame.width * (freedom + 1))).clamp(min=frame.floor)


def covariance(frame: Frame) -> Float[Tensor, " d"]:
    """The diagonal of Σ."""
    between = (frame.means - frame.centre).square().sum()
    freedom, classes = between.new_tensor(frame.freedom), between.new_tensor(len(frame.means))
    variance = within_variance(frame, frame.spectrum.sum(), freedom, between, classes)
    strength = SHRINKAGE * frame.width
    return (frame.spectrum + strength * variance) / (frame.freedom + strength)


def text_slope(frame: Frame, sigma: Float[Tensor, " d"]) -> float:
    """s: 0 where the names differ in nothing, or point away from the photographs."""
    texts = frame.texts - frame.text_centre
    length = float((texts.square() * sigma).sum())
    if length <= 1e-12 * float(sigma.mean()):
        return 0.0
    return max(0.0, float((texts * (frame.means - frame.centre)).sum()) / length)


def inflation(counts: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """ι = 1 + 1/(κ + n): a mean that rests on little makes its class wider."""
    return 1 + 1 / (KAPPA + counts)


class Gaussians(NamedTuple):
    """The classes as rows, so that L_c of images is one product of matrices; in the space of images.

    L_c(x) = u·direction_c − ½ ‖u‖²_P curvature_c + constant_c,   u = x − b,   ‖u‖²_P = ‖u · whiten‖²
    """

    centre: Float[Tensor, " d"]
    whiten: Float[Tensor, "d d"]
    direction: Float[Tensor, "k d"]
    curvature: Float[Tensor, " k"]
    """1/ι"""
    constant: Float[Tensor, " k"]

    def log_densities(self, images: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        u = images - self.centre
        squared = (u @ self.whiten).square().sum(1, keepdim=True)
        return u @ self.direction.T - 0.5 * squared * self.curvature + self.constant


def fit_gaussians(frame: Frame) -> Gaussians:
    """μ̂ and Σ of the classes of a frame."""
    sigma = covariance(frame)
    share = (KAPPA / (KAPPA + frame.counts)).unsqueeze(1)
    names = GAMMA * text_slope(frame, sigma) * sigma * (frame.texts - frame.text_centre)
    mean = share * names + (1 - share) * (frame.means - frame.centre)
    iota = inflation(frame.counts)
    constant = -0.5 * (mean.square() / sigma).sum(1) / iota - 0.5 * frame.width * iota.log()
    direction = mean / sigma / iota.unsqueeze(1)
    to_images = frame.basis.T
    return Gaussians(
        frame.centre @ to_images, frame.basis / sigma.sqrt(), direction @ to_images, 1 / iota, constant
    )


class LeftOut(NamedTuple):
    """What the model without image i says of image i."""

    distances: Float[Tensor, "n k"]
    """D_c; of a class without photographs left, by its name alone"""
    log_densities: Float[Tensor, "n k"]
    """L_c"""
    several: Bool[Tensor, " n"]
    """whether the image's class has photographs left"""


def leave_one_out(
    frame: Frame,
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    weights: Float[Tensor, " n"] | None = None,
) -> LeftOut:
    """For photographs in the eigenbasis, all or some of those that the frame was made of."""
    means, texts, spectrum = frame.means, frame.texts, frame.spectrum
    n, rows, d, classes = frame.counts[labels], torch.arange(len(labels)).to(labels), frame.width, len(means)
    w_ = torch.ones_like(n) if weights is None else weights.to(n)
    several = n - w_ > 1e-9 * n  # of weights, the sums are rounded
    zero = n.new_zeros(())
    r = images - means[labels]
    remaining = torch.where(several, n - w_, zero)
    step = torch.where(several, w_ / torch.where(several, remaining, zero + 1), zero).unsqueeze(1)
    beta = n.unsqueeze(1) * step
    seen = classes - (~several).double()
    freedom = (frame.freedom - w_ + (~several).double()).clamp(min=0)
    own = means[labels] - step * r
    kept, left = several.unsqueeze(1), seen.clamp(min=1).unsqueeze(1)
    centre, text_centre = frame.centre, frame.text_centre
    b = torch.where(kept, centre - step / classes * r, (classes * centre - means[labels]) / left)
    tb = torch.where(kept, text_centre, (classes * text_centre - texts[labels]) / left)

    # Σ without the image: W and the rank-one part
    without = torch.where(several, own.square().sum(1), zero)
    squares = means.square().sum() - means[labels].square().sum(1) + without
    between = (squares - seen * b.square().sum(1)).clamp(min=0)
    trace = (spectrum.sum() - beta[:, 0] * r.square().sum(1)).clamp(min=0)
    strength = SHRINKAGE * d
    a = (strength * within_variance(frame, trace, freedom, between, seen)).unsqueeze(1)
    size = (freedom + strength).unsqueeze(1)
    w = 1 / (spectrum + a)
    wr = w * r
    rr = _dot(wr, r)
    g = beta / (1 - beta * rr)

    # s without the image
    rt = r @ texts.T - _dot(r, tb)
    tt = _squares(texts, tb, torch.ones_like(spectrum)) * a + _squares(texts, tb, spectrum)
    member = torch.ones_like(tt)
    member[rows, labels] = several.double()
    length = ((tt - beta * rt.square()) * member).sum(1) / size[:, 0]
    mean_text = (means * texts).sum(1)
    along = mean_text.sum() - mean_text[labels] - seen * (b * tb).sum(1)
    along = along + torch.where(several, (own * texts[labels]).sum(1), zero)
    enough = length > 1e-12 * (spectrum.sum() / d + a[:, 0]) / size[:, 0]
    slope = torch.where(enough, along / torch.where(enough, length, zero + 1), zero).clamp(min=0)
    slope = GAMMA * slope.unsqueeze(1) / size

    # products in the metric W, with the left-out class at its own mean
    u = images - b
    wu, wb = w * u, w * b
    uu, ur = _dot(wu, u), _dot(wu, r)
    ux = wu @ means.T - _dot(wu, b)
    xx = w @ means.square().T - 2 * wb @ means.T + _dot(wb, b)
    rx = wr @ means.T - _dot(wr, b)
    ut = u @ texts.T - _dot(u, tb)
    xt = mean_text - tb @ means.T - b @ texts.T + _dot(b, tb)
    o = own - b
    for matrix, value in ((ux, wu * o), (xx, w * o * o), (rx, wr * o), (xt, o * (texts[labels] - tb))):
        matrix[rows, labels] = value.sum(1)
    # a name moves the mean by slope·v with v = (S + aI − β r rᵀ) t̃
    vv = tt - 2 * beta * rt.square() + beta.square() * rt.square() * rr
    uv, xv, rv = ut - beta * rt * ur, xt - beta * rt * rx, rt * (1 - beta * rr)
    counts = frame.counts.repeat(len(labels), 1)
    counts[rows, labels] = remaining
    f, p = counts / (KAPPA + counts), slope * KAPPA / (KAPPA + counts)
    plain = uu + f * f * xx + p * p * vv - 2 * f * ux - 2 * p * uv + 2 * f * p * xv
    squared = size * (plain + g * (ur - f * rx - p * rv).square())
    iota = inflation(counts)
    distances = squared / iota
    return LeftOut(distances, -0.5 * distances - 0.5 * d * iota.log(), several)


def _dot(p: Float[Tensor, "n d"], q: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
    return (p * q).sum(1, keepdim=True)


def _squares(
    texts: Float[Tensor, "k d"], centres: Float[Tensor, "n d"], weight: Float[Tensor, " d"]
) -> Float[Tensor, "n k"]:
    """Σ_j weight_j (t_cj − t̄_j)², for each centre t̄."""
    weighted = centres * weight
    return texts.square() @ weight - 2 * weighted @ texts.T + _dot(weighted, centres)
