"""Each photograph judged by the model without it, exactly, at the cost of one fit.

Leaving image i out changes x̄_y, b, t̄, S, σ̄², Σ, s and m, and all of it is carried through:

    x̄_y⁻ = x̄_y − r/(n − 1)          S⁻ = S − β r rᵀ          β = n/(n − 1), r = x_i − x̄_y
    b⁻ = b − r/((n − 1) K)           (S⁻ + aI)⁻¹ = W + g W r rᵀ W,  W = (S + aI)⁻¹, g = β/(1 − β rᵀWr)

with a = ν σ̄⁻². A class whose only photograph is left out is known by its name alone, and leaves b and t̄
(β = 0). The result is that of really fitting without the image, to rounding; tests do that.

With its look-alikes (`core/look_alikes.py`) an image leaves as one point of weight g, their mean x̄_G:

    r = x̄_G − x̄_y      x̄_y⁻ = x̄_y − g r/(n − g)      β = g n/(n − g)

What they differ by among themselves stays in S: it is spread within a class as any other. An image that
counts w times leaves in the same way, as one point of weight w, and N falls by w.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import GAMMA, Frame, within_variance
from pbprompt.core.look_alikes import Alike


class LeftOut(NamedTuple):
    """What the model without image i says of image i."""

    distances: Callable[[float], Float[Tensor, "n k"]]
    """κ ↦ squared distances to the posterior means"""
    counts: Float[Tensor, "n k"]
    """photographs of each class, without the image"""
    several: Bool[Tensor, " n"]
    """whether the image's class has photographs left"""
    own_background: Float[Tensor, " n"]
    """‖x_i − b‖²_P"""
    own_cosines: Float[Tensor, "n k"]
    """(x_i − b)·(t_c − t̄)"""
    background: Float[Tensor, " n"]
    """the same with the image's whole class out of b: as if the class had never been seen"""
    cosines: Float[Tensor, "n k"]
    """the same with its whole class out of b and t̄"""


def leave_one_out(
    frame: Frame, images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], alike: Alike | None = None
) -> LeftOut:
    """For photographs in the eigenbasis, all or some of those that the frame was made of.

    `alike`: what leaves with each, in the eigenbasis too; itself alone unless told.
    """
    gone = Alike.none(images) if alike is None else alike
    number = gone.sizes
    means, texts, spectrum = frame.means, frame.texts, frame.spectrum
    n, rows, d = frame.counts[labels], torch.arange(len(labels), device=labels.device), frame.width
    several = n - number > 1e-9 * n  # of weights, the sums are rounded
    zero = n.new_zeros(())
    r = gone.means - means[labels]
    remaining = torch.where(several, n - number, zero)
    step = torch.where(several, number / torch.where(several, remaining, zero + 1), zero).unsqueeze(1)
    beta = n.unsqueeze(1) * step
    seen = frame.seen - (~several).double()
    freedom = (frame.freedom - gone.weights + (~several).double()).clamp(min=0)
    own = means[labels] - step * r
    kept, left = several.unsqueeze(1), seen.clamp(min=1).unsqueeze(1)
    b = torch.where(
        kept, frame.centre - step / frame.seen * r, (frame.seen * frame.centre - means[labels]) / left
    )
    tb = torch.where(kept, frame.text_centre, (frame.seen * frame.text_centre - texts[labels]) / left)

    # Σ without the image: W and the rank-one part
    without = torch.where(several, own.square().sum(1), zero)
    squares = means.square().sum() - means[labels].square().sum(1) + without
    between = (squares - seen * b.square().sum(1)).clamp(min=0)
    trace = (spectrum.sum() - beta[:, 0] * r.square().sum(1)).clamp(min=0)
    a = (d * within_variance(frame, trace, freedom, between, seen)).unsqueeze(1)
    size = (freedom + d).unsqueeze(1)
    w = 1 / (spectrum + a)
    wr = w * r
    rr = _dot(wr, r)
    g = beta / (1 - beta * rr)

    # s without the image
    rt = r @ texts.T - _dot(r, tb)
    tt = _squares(texts, tb, torch.ones_like(spectrum)) * a + _squares(texts, tb, spectrum)
    member = (frame.counts > 0).double().repeat(len(labels), 1)
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

    def distances(kappa: float) -> Float[Tensor, "n k"]:
        f, p = counts / (kappa + counts), slope * kappa / (kappa + counts)
        plain = uu + f * f * xx + p * p * vv - 2 * f * ux - 2 * p * uv + 2 * f * p * xv
        return size * (plain + g * (ur - f * rx - p * rv).square())

    others = max(1, frame.seen - 1)
    alone = frame.seen < 2  # a single class cannot be left out
    bc = frame.centre.expand_as(images) if alone else (frame.seen * frame.centre - means[labels]) / others
    tc = (
        frame.text_centre.expand_as(images)
        if alone
        else (frame.seen * frame.text_centre - texts[labels]) / others
    )
    e = images - bc
    background = (size * (_dot(w * e, e) + g * _dot(wr, e).square()))[:, 0]
    own_background = (size * (uu + g * ur.square()))[:, 0]
    return LeftOut(distances, counts, several, own_background, ut, background, e @ texts.T - _dot(e, tc))


def _dot(p: Float[Tensor, "n d"], q: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
    return (p * q).sum(1, keepdim=True)


def _squares(
    texts: Float[Tensor, "k d"], centres: Float[Tensor, "n d"], weight: Float[Tensor, " d"]
) -> Float[Tensor, "n k"]:
    """Σ_j weight_j (t_cj − t̄_j)², for each centre t̄."""
    weighted = centres * weight
    return texts.square() @ weight - 2 * weighted @ texts.T + _dot(weighted, centres)
