"""Prompts as prior, photographs as evidence: a class is a Gaussian, placed by its name, moved by photographs.

    μ_c ~ N(m_c, Σ/κ),   m_c = b + γ s Σ t̃_c                what a name says before any photograph
    x | c ~ N(μ_c, Σ)                                         photographs of the class
    μ̂_c = (κ m_c + n_c x̄_c) / (κ + n_c)                      what both say together
    L_c(x) = −½ ‖x − μ̂_c‖²_P / ι_c − ½ d ln ι_c              ι_c = 1 + 1/(κ + n_c): log density of a new image

    Σ = (S + ν σ̄² I) / (N − K + ν),  S = Σ_i r_i r_iᵀ,  r_i = x_i − x̄_{y_i},  ν = d
    σ̄² = (tr S + ½ Σ_c ‖x̄_c − b‖² / (K − 1)) / (d (N − K + 1))
    s = max(0, Σ_c t̃_c·(x̄_c − b) / Σ_c t̃_cᵀ Σ t̃_c)

| symbol   | name here     | meaning                                                                    |
|----------|---------------|----------------------------------------------------------------------------|
| x, d     | `images`      | image features of length 1, in d dimensions                                |
| n_c, x̄_c | `counts`, `means` | photographs of class c, and their mean                                 |
| t̃_c      | `texts`       | text feature of class c, less the mean over the classes with photographs   |
| b        | `centre`      | mean of the class means                                                    |
| Σ, P     | `covariance`  | within-class covariance, shrunk to a sphere; P is its inverse              |
| s, γ     | `slope`       | how far along Σ t̃ the classes lie, fitted; γ = 2 trusts the names more     |
| κ        | `kappa`       | how many photographs a name is worth                                       |

An image far from every class says less than a Gaussian thinks. Under Student's t with d degrees of freedom a
difference of squared distances counts (d + d)/(d + u) times, u the least of ‖x − μ̂_c‖²_P / ι_c at κ = 2:

    logit_c(x) = T h(x) L_c(x),   h(x) = 2d/(d + u(x))

The linear part of L_c under m_c alone is the text classifier itself: without photographs the prompts answer,
and s → 0 where names mean nothing to the backbone. σ̄² counts half of the spread of the class means as one
more degree of freedom, which decides it where every class has a single photograph.

S is diagonalised once; in its eigenbasis Σ and P are diagonal, so that everything after is a product of
matrices: O(N d² + d³ + N K d) in all, in float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.core.statistics import Statistics

GAMMA = 2.0
KAPPA = 2.0  # before anything is known of it
FLOOR = 1e-8  # of the variance, relative to an image's own square: all images may be equal


class Frame(NamedTuple):
    """The statistics and the names in the eigenbasis of S, where every covariance is diagonal."""

    basis: Float[Tensor, "d d"]
    spectrum: Float[Tensor, " d"]
    means: Float[Tensor, "k d"]
    counts: Float[Tensor, " k"]
    texts: Float[Tensor, "k d"]
    """not yet centred"""
    centre: Float[Tensor, " d"]
    text_centre: Float[Tensor, " d"]
    seen: int
    """classes with photographs"""
    freedom: float
    """N − K"""
    floor: float

    @property
    def width(self) -> int:
        return len(self.spectrum)

    @property
    def known(self) -> Int[Tensor, " seen"]:
        """The classes with photographs."""
        return self.counts.nonzero().squeeze(1)


def make_frame(statistics: Statistics, texts: Float[Tensor, "k d"]) -> Frame:
    """Diagonalise S = Σ_i x_i x_iᵀ − Σ_c n_c x̄_c x̄_cᵀ; a class without photographs has the mean 0, unused."""
    counts, sums, moment = statistics
    has, texts = counts > 0, texts.double()
    means = sums / torch.where(has, counts, 1).unsqueeze(1)
    spectrum, basis = torch.linalg.eigh(moment - sums.T @ means)
    means, texts = means @ basis, texts @ basis
    images, seen = float(counts.sum()), int(has.sum())
    floor = FLOOR * float(moment.diagonal().sum()) / images / len(spectrum)
    centre, text_centre = means[has].mean(0), texts[has].mean(0)
    spectrum = spectrum.clamp(min=0)
    freedom = max(0.0, images - seen)
    return Frame(basis, spectrum, means, counts, texts, centre, text_centre, seen, freedom, floor)


def within_variance(
    frame: Frame,
    trace: Float[Tensor, "*n"],
    freedom: Float[Tensor, "*n"],
    between: Float[Tensor, "*n"],
    seen: Float[Tensor, "*n"],
) -> Float[Tensor, "*n"]:
    """σ̄² for tr S, N − K, Σ_c ‖x̄_c − b‖² and K; not below the floor."""
    spread = between / (seen - 1).clamp(min=1)
    return ((trace + spread / 2) / (frame.width * (freedom + 1))).clamp(min=frame.floor)


def covariance(frame: Frame) -> Float[Tensor, " d"]:
    """The diagonal of Σ."""
    between = (frame.means[frame.known] - frame.centre).square().sum()
    scalars = (between.new_tensor(value) for value in (frame.freedom, frame.seen))
    freedom, seen = scalars
    variance = within_variance(frame, frame.spectrum.sum(), freedom, between, seen)
    return (frame.spectrum + frame.width * variance) / (frame.freedom + frame.width)


def text_slope(frame: Frame, sigma: Float[Tensor, " d"]) -> float:
    """s: 0 where the names differ in nothing, or point away from the photographs."""
    texts = frame.texts[frame.known] - frame.text_centre
    length = float((texts.square() * sigma).sum())
    if length <= 1e-12 * float(sigma.mean()):
        return 0.0
    return max(0.0, float((texts * (frame.means[frame.known] - frame.centre)).sum()) / length)


def posterior_means(
    frame: Frame, sigma: Float[Tensor, " d"], slope: float, kappa: float
) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k d"]]:
    """μ̂_c − b as the sum of two parts: what comes from the name and what from the photographs."""
    share = (kappa / (kappa + frame.counts)).unsqueeze(1)
    name = share * GAMMA * slope * sigma * (frame.texts - frame.text_centre)
    photographs = (1 - share) * (frame.means - frame.centre)
    return name, photographs


def distances(
    frame: Frame, sigma: Float[Tensor, " d"], slope: float, images: Float[Tensor, "n d"]
) -> Callable[[float], Float[Tensor, "n k"]]:
    """κ ↦ ‖x − μ̂_c‖²_P of images in the eigenbasis: the products that do not need κ are made once."""
    u, precision = images - frame.centre, 1 / sigma
    means, texts = frame.means - frame.centre, frame.texts - frame.text_centre
    own = (u.square() * precision).sum(1, keepdim=True)
    to_means, to_texts = (u * precision) @ means.T, u @ texts.T
    mean_mean, mean_text = (means.square() * precision).sum(1), (means * texts).sum(1)
    text_text = (texts.square() * sigma).sum(1)

    def at(kappa: float) -> Float[Tensor, "n k"]:
        a = frame.counts / (kappa + frame.counts)
        p = GAMMA * slope * kappa / (kappa + frame.counts)
        linear = a * to_means + p * to_texts
        return own - 2 * linear + a * a * mean_mean + 2 * a * p * mean_text + p * p * text_text

    return at


def inflation(counts: Float[Tensor, "*n"], kappa: float) -> Float[Tensor, "*n"]:
    """ι = 1 + 1/(κ + n): a mean that rests on little makes its class wider."""
    return 1 + 1 / (kappa + counts)


def log_density(
    squared: Float[Tensor, "n k"], counts: Float[Tensor, "*n k"], kappa: float, width: int
) -> Float[Tensor, "n k"]:
    """L_c(x), up to what all classes share."""
    iota = inflation(counts, kappa)
    return -0.5 * squared / iota - 0.5 * width * iota.log()


def tail_factor(nearest: Float[Tensor, "*n"], width: int) -> Float[Tensor, "*n"]:
    """h: 1 for an image as far from its class as expected, less for one farther off."""
    return 2 * width / (width + nearest)
