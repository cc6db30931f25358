"""One-vs-rest fitted: what it leaves open is chosen by images left out, and an affine head is all to keep.

    ℓ_c(x) = T L_c(x) + ln (n_c + ½)/(N − n_c + ½) + B,   p(c | x) = σ(ℓ_c(x)) = σ(w_c·x + b_c)
    κ, T, B = argmax  p(κ) p(T) p(B) Π_ic p⁻ⁱ(y_ic | x_i)            each image by the model without it
    p(κ) = LogNormal(ln 2, 1),  p(T) = LogNormal(ln 2/√d, 1),  p(B) = N(0, 1)

T and B are the same for all classes: one class has too few images to fit two numbers to.

The threshold of a class is the one that its left-out images have the best F1 at, where all classes together
count as if they were `WORTH` more images with the label:

    τ_c = argmax_τ  2 (TP_c(τ) + λ TP(τ)) / (n_c + λ P + Y_c(τ) + λ Y(τ)),   λ = WORTH / P

TP are images rightly said to have the label, Y those said to have it at all; TP, Y and P = Σ_c n_c without an
index are sums over the classes. A class of few images, or none, thus takes the threshold of the others. Of
thresholds that are equally good it is the middle one.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt.evidence.experts.gaussian import KAPPA
from pbprompt.evidence.one_vs_rest import (
    InEigenbasis,
    Products,
    label_statistics,
    log_ratio,
    prior_odds,
    products,
)
from pbprompt.evidence.weights import newton

KAPPA_SPREAD = 1.0  # prior of ln κ, around ln KAPPA
KAPPAS = tuple(2.0**power for power in range(-2, 7))
WORTH = 32.0  # images with a label that all classes together count as, for the threshold of one
THRESHOLDS = torch.arange(1, 100, dtype=torch.float64) / 100
CELLS = 1 << 21  # of a table of left-out images by labels or dimensions


class LabelChoice(NamedTuple):
    """κ, T and B."""

    kappa: float
    temperature: float
    offset: float

    def log_odds(self, parts: Products) -> Float[Tensor, "n k"]:
        """ℓ_c of images."""
        return self.temperature * log_ratio(parts, self.kappa) + prior_odds(parts) + self.offset


def choose_label_settings(left: Products, targets: Float[Tensor, "n k"], width: int) -> LabelChoice:
    """The most probable, by images left out."""
    odds, y = prior_odds(left), targets.double()
    best, least = LabelChoice(KAPPA, 2 / math.sqrt(width), 0.0), math.inf
    for kappa in KAPPAS:
        temperature, offset, loss = _fit(log_ratio(left, kappa), odds, y, math.log(2 / math.sqrt(width)))
        loss += 0.5 * (math.log(kappa / KAPPA) / KAPPA_SPREAD) ** 2
        if loss < least:
            best, least = LabelChoice(kappa, temperature, offset), loss
    return best


def _fit(
    ratio: Float[Tensor, "n k"], odds: Float[Tensor, "n k"], y: Float[Tensor, "n k"], centre: float
) -> tuple[float, float, float]:
    """T, B and the negative log posterior, by Fisher scoring of (ln T, B)."""
    prior = ratio.new_tensor([centre, 0.0])

    def loss(at: Float[Tensor, "2"]) -> Float[Tensor, ""]:
        told = F.binary_cross_entropy_with_logits(at[0].exp() * ratio + odds + at[1], y, reduction="sum")
        return told + 0.5 * (at - prior).square().sum()

    def step(at: Float[Tensor, "2"]) -> Float[Tensor, "2"]:
        scaled = at[0].exp() * ratio
        said = torch.sigmoid(scaled + odds + at[1])
        wrong, weight = said - y, said * (1 - said)
        slope = torch.stack([(wrong * scaled).sum(), wrong.sum()]) + at - prior
        cross = (weight * scaled).sum()
        curve = torch.stack([(weight * scaled.square()).sum(), cross, cross, weight.sum()]).view(2, 2)
        return torch.linalg.solve(curve + torch.eye(2).to(curve), slope)

    place = newton(prior, loss, step)
    return float(place[0].exp()), float(place[1]), float(loss(place))


def choose_thresholds(
    probabilities: Float[Tensor, "n k"], targets: Float[Tensor, "n k"], worth: float = WORTH
) -> Float[Tensor, " k"]:
    """τ_c, from left-out probabilities; ½ where no image has any label."""
    y, levels = targets.double(), THRESHOLDS.to(probabilities.device)
    positives = y.sum(0)
    total = positives.sum()
    if total == 0:
        return torch.full_like(positives, 0.5)
    said = torch.stack([(probabilities >= level).double().sum(0) for level in levels])
    right = torch.stack([((probabilities >= level) * y).sum(0) for level in levels])
    share = worth / total
    above = 2 * (right + share * right.sum(1, keepdim=True))
    below = positives + said + share * (total + said.sum(1, keepdim=True))
    score = above / below
    best = score >= score.amax(0) - 1e-12
    middle = best.cumsum(0) == (best.sum(0) + 1) // 2  # of those that are equally good
    return levels[middle.int().argmax(0)]


class LabelHead(NamedTuple):
    """What tells of an image which labels it has."""

    weight: Float[Tensor, "k d"]
    bias: Float[Tensor, " k"]
    threshold: Float[Tensor, " k"]
    """τ, a probability"""
    positives: Float[Tensor, " k"]
    """training images with the label"""

    def probabilities(self, images: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Of unit image features."""
        return torch.sigmoid(images.to(self.weight) @ self.weight.T + self.bias)


def fit_label_head(
    images: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], texts: Float[Tensor, "k d"]
) -> LabelHead:
    """From unit image features, 1 where an image has a label and 0 where not, and the names' features.

    Of very many images, some that lie evenly among them are left out in turn and stand for all.
    """
    known = label_statistics(images, targets, texts)
    most = max(1, CELLS // max(targets.shape[1], known.width))
    rows = slice(None, None, -(-len(images) // most))
    y = targets[rows].double()
    left = products(known, images[rows].double() @ known.basis, y)
    choice = choose_label_settings(left, y, known.width)
    threshold = choose_thresholds(torch.sigmoid(choice.log_odds(left)), y)
    weight, bias = affine(known, choice)
    return LabelHead(weight.float(), bias.float(), threshold.float(), known.counts.float())


def affine(known: InEigenbasis, choice: LabelChoice) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """w and b, read off the log-odds at 0 and at the ends of the axes."""
    axes = torch.eye(known.width, dtype=torch.float64, device=known.basis.device)
    bias = choice.log_odds(products(known, torch.zeros_like(axes[:1])))
    along = choice.log_odds(products(known, axes)) - bias
    return along.T @ known.basis.T, bias[0]
