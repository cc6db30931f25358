"""Several labels an image: for each class two Gaussians, the images that have its label and the rest.

    x | c ~ N(μ_c, Σ_c),   x | not c ~ N(z̄_c, Σ_c)             one covariance for both
    μ_c ~ N(m_c, Σ_c/κ),   m_c = z̄_c + γ s Σ_c t̃_c             what the name says before any photograph
    μ̂_c = (κ m_c + n_c x̄_c) / (κ + n_c)                       what both say together
    L_c(x) = w_c·(x − z̄_c) − ½ w_c·(μ̂_c − z̄_c),   w_c = Σ_c⁻¹(μ̂_c − z̄_c)

    Σ_c = (S − ρ δ_c δ_cᵀ + aI) / (N − 2 + d),  S = Σ_i (x_i − x̄)(x_i − x̄)ᵀ,  ρ = n_c (N − n_c)/N
    a = tr S / (N − 1)
    s = max(0, Σ_c t̃_c·δ_c / Σ_c t̃_cᵀ Σ_c t̃_c)

| symbol         | meaning                                                                         |
|----------------|---------------------------------------------------------------------------------|
| x, d, N        | image features of length 1, in d dimensions; how many there are                 |
| n_c, x̄_c, z̄_c | images with the label c; their mean, and that of the rest                       |
| δ_c            | x̄_c − z̄_c; 0 where there are no such images                                    |
| t̃_c           | text feature of class c, less the mean over the classes                         |
| s, γ, κ        | as in `experts/gaussian.py`: how far names are to be trusted                   |

S − ρ δ δᵀ is the scatter within the two groups, so that one scatter of all images serves every class, and
w_c is a sum of the text classifier and of what the photographs say:

    w_c = (κ γ s t̃_c + n_c Σ_c⁻¹ δ_c)/(κ + n_c),   Σ_c⁻¹ δ = (N − 2 + d) A⁻¹δ / (1 − ρ δᵀA⁻¹δ),   A = S + aI

S is diagonalised once, and all that comes after is products of matrices: O(N d² + d³ + N K d), in float64.

What this leaves open is chosen by images left out, and an affine head is all to keep:

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

from pbprompt.evidence.experts.gaussian import FLOOR, GAMMA, KAPPA
from pbprompt.evidence.weights import newton


class InEigenbasis(NamedTuple):
    """Images and names in the eigenbasis of S, where A is diagonal."""

    basis: Float[Tensor, "d d"]
    spectrum: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    """x̄"""
    counts: Float[Tensor, " k"]
    """n_c"""
    steps: Float[Tensor, "k d"]
    """δ_c"""
    texts: Float[Tensor, "k d"]
    """t̃_c"""
    images: int
    floor: float

    @property
    def width(self) -> int:
        return len(self.spectrum)


class Products(NamedTuple):
    """What L_c(x) is made of, whatever κ is; of the model with all images, or without one in each row."""

    counts: Float[Tensor, "n k"]
    rest: Float[Tensor, "n k"]
    """N − n_c"""
    text_step: Float[Tensor, "n k"]
    """t̃·δ"""
    text_text: Float[Tensor, "n k"]
    """t̃ᵀ Σ_c t̃"""
    step_step: Float[Tensor, "n k"]
    """δᵀ Σ_c⁻¹ δ"""
    text_image: Float[Tensor, "n k"]
    """t̃·(x − z̄)"""
    step_image: Float[Tensor, "n k"]
    """δᵀ Σ_c⁻¹ (x − z̄)"""


def label_statistics(
    images: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], texts: Float[Tensor, "k d"]
) -> InEigenbasis:
    """From unit image features, 1 where an image has a label and 0 where not, and the names' features."""
    x, y, texts = images.double(), targets.double(), texts.double()
    centre, counts = x.mean(0), y.sum(0)
    offsets = x - centre
    spectrum, basis = torch.linalg.eigh(offsets.T @ offsets)
    both = (counts > 0) & (counts < len(x))
    # x̄_c − z̄_c = N/(N − n_c) (x̄_c − x̄)
    scale = torch.where(both, len(x) / (counts * (len(x) - counts)).clamp(min=1), 0)
    steps = scale.unsqueeze(1) * (y.T @ offsets)
    floor = FLOOR * float(x.square().sum()) / len(x)
    names = texts - texts.mean(0)
    spectrum = spectrum.clamp(min=0)
    return InEigenbasis(basis, spectrum, centre @ basis, counts, steps @ basis, names @ basis, len(x), floor)


def products(
    known: InEigenbasis, images: Float[Tensor, "n d"], targets: Float[Tensor, "n k"] | None = None
) -> Products:
    """Of new images in the eigenbasis; with `targets`, of training images, each by the model without it.

    With r = x − x̄ and N' images in the model, all lies along r and δ_c, exactly:

        δ' = p δ + q r      x − z̄' = u r + v δ      A'⁻¹ = W + g W r rᵀ W,  g = β/(1 − β rᵀWr)

    where W = (S + a'I)⁻¹. Of a new image p = u = 1, v = n/N and q = β = 0. Without image i, S' = S − β r rᵀ
    with β = N/(N − 1), and a' differs from image to image.
    """
    size, r = float(known.images), images - known.centre
    n, m = known.counts.expand(len(r), -1), size - known.counts.expand(len(r), -1)
    if targets is None:
        left, beta, fewer, rest, v = known.images, 0.0, n, m, n / size
        p, q, u = torch.ones_like(n), torch.zeros_like(n), torch.ones_like(n)
    else:
        left, beta, own = known.images - 1, size / (size - 1), targets > 0
        fewer, rest = n - own.double(), m - (~own).double()
        both = (fewer > 0) & (rest > 0)
        kept = torch.where(own, fewer, rest).clamp(min=1)  # of the image's own group
        p = torch.where(both, 1 + torch.where(own, m, n) / (size * kept), 0)
        q = torch.where(both, torch.where(own, -1.0, 1.0).double() / kept, 0)
        # of a group that is now empty, the mean of all stands for the rest
        u = torch.where(own | (rest == 0), 1.0, m / kept)
        v = u * torch.where(~own & (rest == 0), n / size - 1, n / size)

    trace = known.spectrum.sum() - beta * r.square().sum(1, keepdim=True)
    a = (trace / max(1, left - 1)).clamp(min=known.floor)
    w = 1 / (known.spectrum + a)
    rr = (w * r * r).sum(1, keepdim=True)
    g = beta / (1 - beta * rr)
    rd, dd = (w * r) @ known.steps.T, w @ known.steps.square().T
    tr, td = r @ known.texts.T, (known.texts * known.steps).sum(1)
    tt = (known.texts.square() * known.spectrum).sum(1) + a * known.texts.square().sum(1)

    along = p * rd + q * rr  # δ'ᵀ W r
    plain = p * p * dd + 2 * p * q * rd + q * q * rr + g * along.square()
    rho = fewer * rest / left
    freedom = max(0, left - 2) + known.width  # N' − 2 + d, the divisor of the covariance
    shrink = freedom / (1 - rho * plain)
    text_step = p * td + q * tr
    step_image = u * along + v * (p * dd + q * rd) + g * (u * rr + v * rd) * along
    return Products(
        fewer,
        rest,
        text_step,
        (tt - beta * tr.square() - rho * text_step.square()) / freedom,
        shrink * plain,
        u * tr + v * td,
        shrink * step_image,
    )


def log_ratio(parts: Products, kappa: float) -> Float[Tensor, "n k"]:
    """L_c of each image."""
    name = kappa * GAMMA * slope(parts).unsqueeze(-1)
    total, n = kappa + parts.counts, parts.counts
    linear = (name * parts.text_image + n * parts.step_image) / total
    squares = name.square() * parts.text_text + 2 * name * n * parts.text_step + n.square() * parts.step_step
    return linear - 0.5 * squares / total.square()


def slope(parts: Products) -> Float[Tensor, " n"]:
    """s: 0 where the names differ in nothing, or point away from the photographs."""
    both = (parts.counts > 0) & (parts.rest > 0)
    along = torch.where(both, parts.text_step, 0).sum(-1)
    length = torch.where(both, parts.text_text, 0).sum(-1)
    enough = length > 1e-12 * parts.text_text.abs().sum(-1).clamp(min=1e-30)
    return torch.where(enough, along / torch.where(enough, length, 1), 0).clamp(min=0)


def prior_odds(parts: Products) -> Float[Tensor, "n k"]:
    """ln (n_c + ½)/(N − n_c + ½): how frequent the label is."""
    return ((parts.counts + 0.5) / (parts.rest + 0.5)).log()


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
