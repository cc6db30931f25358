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
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.evidence.experts.gaussian import FLOOR, GAMMA


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
