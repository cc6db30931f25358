"""What the photographs, each left out in turn, say about the numbers that the conjugate model leaves open.

    p(κ, T | photographs) ∝ p(κ) p(T) Π_i softmax_c(T L_c⁻ⁱ(x_i))_{y_i}      how far names and distances count
    p(κ) = LogNormal(ln 2, 1),  p(T) = LogNormal(ln T₀, ½),  T₀ = spread of zero-shot's logits / spread of L⁻ⁱ

T₀ makes the Gaussians as decided as the prompts are: it needs no photograph to be judged, and the photographs
overrule it. Those that are their class's only one say how good its name is, not how good κ is, and are left
out of the product. Predictions average over what is left of the grid: a point would be too sure at one shot.

A class known by its name alone cannot be scored by the same Gaussian, whose distances the photographs set:

    logit_c(x) = T [−½ ‖x − b‖²_P / ι₀ − ½ d ln ι₀] + ψ (x − b)·t̃_c + δ     the background, tilted by a name

| symbol | meaning                                                                                           |
|--------|---------------------------------------------------------------------------------------------------|
| ψ      | logit scale at which names alone, each photograph's class out of b and t̄, tell classes best       |
| ι₀     | how much wider than Σ the background is: the mean of left-out ‖x − b‖²_P / d                      |
| δ      | makes both kinds of classes comparable: fitted to known classes, half of them treated as names    |
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import Frame, covariance, distances, inflation, log_density, text_slope
from pbprompt.core.leave_one_out import LeftOut, leave_one_out

KAPPA, KAPPA_SPREAD = 2.0, 1.0  # prior of κ
TEMPER_SPREAD = 0.5  # prior of ln T
KAPPAS = tuple(2.0**power for power in range(-2, 7))
TEMPERS = tuple(math.exp(step / 4) for step in range(-7, 8))  # of T / T₀
NAME_SPREAD = 0.5  # prior of ln ψ, around the backbone's own scale
NAME_SCALES = tuple(math.exp(step / 8) for step in range(-24, 9))
OFFSET_SPREAD = 1.0  # prior of δ
BACKGROUND_COUNT = 4.0  # photographs that the prior of ι₀ is worth
NEGLIGIBLE = 0.05  # pairs (κ, T) below this weight, relative to the best, are dropped
HALVINGS = 4  # random halves of the known classes, and their complements, to fit δ


class Choice(NamedTuple):
    """The posterior of (κ, T) and the rest, as tensors that can be saved."""

    kappa: Float[Tensor, " j"]
    temper: Float[Tensor, " j"]
    weight: Float[Tensor, " j"]
    """sums to 1; the most probable pair comes first"""
    name_scale: Float[Tensor, ""]
    background: Float[Tensor, ""]
    """ι₀"""
    offset: Float[Tensor, ""]
    """δ"""
    information: Float[Tensor, ""]
    """the share of ln K that names alone tell of the photographs' classes, 0 to 1"""
    nearest: Float[Tensor, " n"]
    """distance of each left-out photograph to its nearest class; empty where nothing can be left out"""
    odds: Float[Tensor, " n"]
    """log-odds that a left-out photograph shows a known class, ascending"""


def choose(frame: Frame, images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], scale: float) -> Choice:
    """From photographs in the eigenbasis (all, or a part that stands for them); `scale`: exp(logit scale)."""
    known, d = frame.known, frame.width
    column = torch.searchsorted(known, labels)  # of each label among the known
    several = frame.counts[labels] > 1
    if frame.seen < 2:  # nothing to tell apart
        number = frame.centre.new_tensor
        kappa, temper = number([KAPPA]), number([min(1.0, 2 / math.sqrt(d))])
        nothing = number([])
        background = number(1 + 1 / KAPPA)
        return Choice(
            kappa,
            temper,
            number([1.0]),
            number(scale),
            background,
            number(0.0),
            number(0.0),
            nothing,
            nothing,
        )
    left = leave_one_out(frame, images, labels)
    pairs = _pairs(frame, left, images, known, column, several, scale)
    kappa, temper, weight, table = pairs
    best_kappa, best_temper = float(kappa[0]), float(temper[0])
    cosines = left.cosines[:, known]
    name_scale = _name_scale(cosines, column, scale)
    wide = left.background[several].sum() / d
    background = (BACKGROUND_COUNT * (1 + 1 / best_kappa) + wide) / (BACKGROUND_COUNT + several.sum())
    ground = best_temper * background_density(left.background, background, d)
    # the tilt by a name must not make the background denser on the average
    offset = math.log(cosines.numel()) - (name_scale * cosines.flatten()).logsumexp(0)
    if several.any() and frame.seen > 2:
        names = (ground + offset).unsqueeze(1) + name_scale * cosines
        counts = frame.counts[labels][several]
        photographs = best_temper * table
        offset = offset + _offset(photographs[several], names[several], column[several], counts)
    told = _own(name_scale * cosines, column).mean()
    iota = inflation(left.counts, best_kappa)
    nearest = (left.distances(best_kappa) / iota)[:, known].amin(1)
    ground = best_temper * background_density(left.own_background, background, d)
    odds = known_odds(best_temper * table, ground, name_scale * left.own_cosines[:, known])
    return Choice(
        kappa,
        temper,
        weight,
        name_scale,
        background,
        torch.as_tensor(offset),
        (1 + told / math.log(frame.seen)).clamp(min=0),
        nearest,
        odds.sort().values,
    )


def background_density(
    squared: Float[Tensor, " n"], width: Float[Tensor, ""] | float, d: int
) -> Float[Tensor, " n"]:
    """−½ ‖x − b‖²_P / ι₀ − ½ d ln ι₀."""
    return -0.5 * squared / width - 0.5 * d * torch.as_tensor(width).log()


def known_odds(
    photographs: Float[Tensor, "n k"], ground: Float[Tensor, " n"], names: Float[Tensor, "n k"]
) -> Float[Tensor, " n"]:
    """log-odds, up to a constant, that an image shows one of the known classes and not something else."""
    return photographs.logsumexp(1) - ground + names.logsumexp(1)


def _pairs(
    frame: Frame,
    left: LeftOut,
    images: Float[Tensor, "n d"],
    known: Int[Tensor, " k"],
    column: Int[Tensor, " n"],
    several: Bool[Tensor, " n"],
    scale: float,
) -> tuple[Float[Tensor, " j"], Float[Tensor, " j"], Float[Tensor, " j"], Float[Tensor, "n k"]]:
    """(κ, T, weight) of what is left of the grid, the best first, and its left-out log densities."""
    informed = frame.seen > 2 or bool(several.any())  # two single photographs leave nothing to compare
    sigma = covariance(frame)
    inside = distances(frame, sigma, text_slope(frame, sigma), images)
    zero_shot = _spread(scale * images @ frame.texts[known].T)
    rows: list[tuple[float, float, float]] = []
    tables = []
    for kappa in KAPPAS:
        squared, counts = (left.distances(kappa), left.counts) if informed else (inside(kappa), frame.counts)
        table = log_density(squared, counts, kappa, frame.width)[:, known]
        tables.append(table)
        usual = _spread(table[several] if frame.seen < 3 and informed else table)
        centre = zero_shot / usual if usual > 0 and zero_shot > 0 else 2 / math.sqrt(frame.width)
        for ratio in TEMPERS:
            score = -0.5 * (math.log(kappa / KAPPA) / KAPPA_SPREAD) ** 2
            score -= 0.5 * (math.log(ratio) / TEMPER_SPREAD) ** 2
            score += float(_own(centre * ratio * table[several], column[several]).sum())
            rows.append((kappa, centre * ratio, score))
    kappa, temper, score = table.new_tensor(rows).T
    weight = score.softmax(0)
    order = weight.argsort(descending=True, stable=True)
    order = order[weight[order] > NEGLIGIBLE * weight.max()]
    weight = weight[order] / weight[order].sum()
    return kappa[order], temper[order], weight, tables[int(order[0]) // len(TEMPERS)]


def _name_scale(cosines: Float[Tensor, "n k"], column: Int[Tensor, " n"], scale: float) -> Float[Tensor, ""]:
    def score(factor: float) -> float:
        fit = float(_own(factor * scale * cosines, column).sum())
        return fit - 0.5 * (math.log(factor) / NAME_SPREAD) ** 2

    return cosines.new_tensor(scale * max(NAME_SCALES, key=score))


def _offset(
    photographs: Float[Tensor, "n k"],
    names: Float[Tensor, "n k"],
    column: Int[Tensor, " n"],
    counts: Float[Tensor, " n"],
) -> float:
    """δ under which known classes, half of which are treated as names alone, are told best.

    A class counts as one observation: its photographs are alike. The score is concave in δ, so that thirds
    of an interval find its top.
    """
    classes = photographs.shape[1]
    order = torch.rand(HALVINGS, classes, generator=torch.Generator().manual_seed(0)).argsort(1)
    halves = (order < classes / 2).to(photographs.device)
    masks = torch.cat([halves, ~halves])

    def score(offset: float) -> float:
        fits = (_own(torch.where(mask, names + offset, photographs), column) / counts for mask in masks)
        return float(sum(fit.sum() for fit in fits)) / len(masks) - 0.5 * (offset / OFFSET_SPREAD) ** 2

    low, high = -10.0, 10.0
    while high - low > 0.02:
        third = (high - low) / 3
        if score(low + third) < score(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _own(logits: Float[Tensor, "n k"], column: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log softmax at each row's own column."""
    return logits.log_softmax(1).gather(1, column.unsqueeze(1)).squeeze(1)


def _spread(logits: Float[Tensor, "n k"]) -> float:
    """Root of the mean variance over classes."""
    return math.sqrt(float(logits.var(1).mean()))
