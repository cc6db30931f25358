"""Names as prior, photographs as evidence: every class a Gaussian, all of one shape.

    μ_c ~ N(m_c, Σ/κ),  m_c = b + γ s Σ t̃_c               what the name says before any photograph
    x | c ~ N(μ_c, Σ)                                     photographs of the class
    μ̂_c = (κ m_c + n_c x̄_c) / (κ + n_c)                  what both say together
    D_c(x) = ‖x − μ̂_c‖²_P / ι_c                           ι_c = 1 + 1/(κ + n_c)
    L_c(x) = −½ D_c(x) − ½ d ln ι_c                       log density of a new image, up to a constant

    Σ = (S + a I) / (N − K + ν),  S = Σ_i r_i r_iᵀ,  r_i = x_i − x̄_{y_i},  ν = d
    a = ν (tr S + ½ Σ_c ‖x̄_c − b‖² / (K − 1)) / (d (N − K + 1))
    s = max(0, Σ_c t̃_c·(x̄_c − b) / Σ_c t̃_cᵀ Σ t̃_c)

| symbol    | name here         | meaning                                                                   |
|-----------|-------------------|---------------------------------------------------------------------------|
| x, d      | `images`          | image features of length 1, in d dimensions                               |
| n_c, x̄_c  | `counts`, `means` | photographs of class c (at least one), and their mean                     |
| t̃_c       | `texts`           | text feature of class c, less the mean over the classes                   |
| b         | `centre`          | mean of the class means                                                   |
| Σ, P      | `whiten`          | within-class covariance, shrunk to a sphere; P is its inverse             |
| s, γ      | `slope`           | how far along Σ t̃ the classes lie, fitted; γ = 2 trusts the names more    |
| κ         | `KAPPA`           | how many photographs a name is worth                                      |

The linear part of L_c under m_c alone is the text classifier itself, and s → 0 where names mean nothing to
the backbone. Half of the spread of the class means counts as one more degree of freedom within the classes,
which decides a where every class has a single photograph.

All is computed in whitened coordinates, u W with W Wᵀ = P, so that everything after one Cholesky factor of Σ
is a product of matrices: O(N d² + d³ + N K d) in all, in float64.

**Held out.** How the classes are told apart is judged by folds (`expert.py`): everything is fitted again to
what is left, all classes having lost as many. Σ of fewer photographs has another scale, and with it L: scores
held out are brought to the spread, over the other classes of the same photographs, of those of the whole.

How near an image looks, D, is judged by the posterior without it alone, exactly: the prior (b, s, a) stays as
it is. An image that counts w times leaves its class n − w photographs, and with r = x_i − x̄_y

    x̄_y⁻ = x̄_y − w r/(n − w)       S⁻ = S − β r rᵀ,  β = w n/(n − w)
    ‖e‖²_{P⁻} = (1 − w/M) [‖e‖²_P + g (rᵀPe)²],  g = (β/M)/(1 − (β/M) rᵀPr),  M = N − K + ν

A class whose only photograph is left out is known by its name alone, with S as it is.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import Statistics
from pbprompt.evidence.expert import HeldOut, Kind, Photographs, Seen

GAMMA = 2.0
KAPPA = 2.0
SHRINKAGE = 1.0  # ν / d
SPREAD = 0.5  # of the class means, as one degree of freedom within the classes
BLOCK = 1 << 19  # cells of a table of held-out photographs that is made at once
FLOOR = 1e-8  # of the variance, relative to an image's own square: all images may be equal


class Frame(NamedTuple):
    """The classes about their centre, in whitened coordinates."""

    whiten: Float[Tensor, "d d"]
    """W"""
    size: float
    """N − K + ν"""
    centre: Float[Tensor, " d"]
    """b, as it is"""
    counts: Float[Tensor, " k"]
    means: Float[Tensor, "k d"]
    """(x̄_c − b) W"""
    priors: Float[Tensor, "k d"]
    """(m_c − b) W"""


def whitened(statistics: Statistics, texts: Float[Tensor, "k d"]) -> Frame:
    """Of classes that all have photographs: S = Σ_i x_i x_iᵀ − Σ_c n_c x̄_c x̄_cᵀ."""
    counts, sums, moment = statistics
    means, width, images = statistics.means, len(moment), float(counts.sum())
    scatter = moment - sums.T @ means
    freedom, strength = max(0.0, images - len(counts)), SHRINKAGE * width
    centre = means.mean(0)
    means, texts = means - centre, texts.double() - texts.double().mean(0)
    spread = means.square().sum() / max(1, len(counts) - 1)
    variance = (scatter.trace().clamp(min=0) + SPREAD * spread) / (width * (freedom + 1))
    variance = variance.clamp(min=FLOOR * float(moment.trace()) / images / width)
    sigma = (scatter + strength * variance * torch.eye(width).to(scatter)) / (freedom + strength)
    placed = texts @ sigma
    length = (texts * placed).sum()
    slope = ((texts * means).sum() / length).clamp(min=0) if length > 1e-12 * sigma.trace() / width else 0.0
    lower = torch.linalg.cholesky(sigma)
    whiten = torch.linalg.solve_triangular(lower, torch.eye(width).to(sigma), upper=False).T
    return Frame(whiten, freedom + strength, centre, counts, means @ whiten, GAMMA * slope * placed @ whiten)


def inflation(counts: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """ι = 1 + 1/(κ + n): a mean that rests on little makes its class wider."""
    return 1 + 1 / (KAPPA + counts)


def posterior_means(
    counts: Float[Tensor, " n"], means: Float[Tensor, "n d"], priors: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """μ̂ − b."""
    n = counts.unsqueeze(1)
    return (KAPPA * priors + n * means) / (KAPPA + n)


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

    def scores(self, images: Seen) -> Float[Tensor, "b k"]:
        """L_c"""
        u = images.global_ - self.centre
        squared = (u @ self.whiten).square().sum(1, keepdim=True)
        return u @ self.direction.T - 0.5 * squared * self.curvature + self.constant

    def slopes(self, centre: Float[Tensor, " d"]) -> Float[Tensor, "k d"]:
        """At b, the centre of all classes."""
        return self.direction

    def closeness(self, scores: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """−min_c D_c, from L_c."""
        return -(len(self.centre) * self.curvature.log() - 2 * scores).amin(1)


def fit(photographs: Photographs) -> tuple[Gaussians, HeldOut]:
    """Its closeness is −min_c D_c."""
    frame, shown = whitened(photographs.statistics, photographs.placed[1]), photographs
    whole, several = fit_gaussians(frame), photographs.several
    rows = torch.arange(len(shown.labels)).to(shown.labels)
    blocks = rows.split(max(1, BLOCK // max(shown.classes, shown.images.shape[1])))
    parts = [leave_one_out(frame, shown.images[b], shown.labels[b], shown.shares[b]) for b in blocks]
    distances, scores = (torch.cat(part) for part in zip(*parts, strict=True))
    for gone, asked in shown.folds:
        rest = shown.without(gone)
        again = fit_gaussians(whitened(rest.statistics, rest.placed[1]))
        scores[asked] = again.scores(Seen(shown.images[asked]))
    if several.any() and shown.classes > 2:
        tables = whole.scores(Seen(shown.images[several])), scores[several]
        now, then = (_spread(table, ~shown.own[several]) for table in tables)
        scores[several] *= torch.where(then > 0, now / then, 1.0)
    others = distances.masked_fill(shown.own, torch.inf)
    return whole, HeldOut(scores, -distances.amin(1), -others.amin(1))


EXPERT = Kind(fit, Gaussians, says="class mean", usual=0.75, in_spreads=True, only_beyond=True)


def _spread(table: Float[Tensor, "n k"], others: Bool[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Over a photograph's other classes: the root mean square of the deviations."""
    return table[others].view(len(table), -1).var(1).mean().sqrt()


def fit_gaussians(frame: Frame) -> Gaussians:
    """μ̂ and Σ of the classes of a frame."""
    iota, width = inflation(frame.counts), len(frame.centre)
    mean = posterior_means(frame.counts, frame.means, frame.priors)
    constant = -0.5 * mean.square().sum(1) / iota - 0.5 * width * iota.log()
    direction = mean @ frame.whiten.T / iota.unsqueeze(1)
    return Gaussians(frame.centre, frame.whiten, direction, 1 / iota, constant)


def leave_one_out(
    frame: Frame, images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """D and L of some of the photographs, by the posterior without each; and how often each counts."""
    rows = torch.arange(len(labels)).to(labels)
    u = (images.double() - frame.centre) @ frame.whiten
    n, own_mean = frame.counts[labels], frame.means[labels]
    several = n - weights > 1e-9 * n  # sums of weights are rounded
    left = torch.where(several, n - weights, 0.0)
    gone = torch.where(several, weights, 0.0)
    share = gone / torch.where(several, left, 1.0)
    r = u - own_mean
    own = posterior_means(left, own_mean - share.unsqueeze(1) * r, frame.priors[labels])
    mean = posterior_means(frame.counts, frame.means, frame.priors)

    offset = u - own
    squared = u.square().sum(1, keepdim=True) - 2 * u @ mean.T + mean.square().sum(1)
    along = (r * u).sum(1, keepdim=True) - r @ mean.T
    squared[rows, labels] = offset.square().sum(1)
    along[rows, labels] = (r * offset).sum(1)
    beta = share * n / frame.size
    g = beta / (1 - beta * r.square().sum(1))
    squared = (1 - gone / frame.size).unsqueeze(1) * (squared + g.unsqueeze(1) * along.square())

    counts = frame.counts.repeat(len(labels), 1)
    counts[rows, labels] = left
    iota = inflation(counts)
    distances = squared / iota
    return distances, -0.5 * distances - 0.5 * len(frame.centre) * iota.log()
