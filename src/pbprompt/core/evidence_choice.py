"""What the photographs, each left out in turn, say about the numbers that the conjugate model leaves open.

    p(κ, T | photographs) ∝ p(κ) p(T) Π_i softmax_c(T h_i L_c⁻ⁱ(x_i))_{y_i}  how far names and distances count
    p(κ) = LogNormal(ln 2, 1),  p(T) = LogNormal(ln T₀, ½)
    T₀ = spread of zero-shot's logits / spread of h L⁻ⁱ

T₀ makes the Gaussians as decided as the prompts are: it needs no photograph to be judged, and the photographs
overrule it. Those that are their class's only one, or leave with all of its others as look-alikes, say how
good its name is, not how good κ is, and are not in the product. Predictions average over what is left of the
grid: a point would be too sure at one shot. h_i is the tail's factor (`core/conjugate.py`).

A left-out photograph is judged by n − g of its class, a new one by n, and the more there are the more decided
the model may be. Over validation images of several datasets T grew as the fourth root of n:

    T ← T · exp(¼ mean_i ln(n / (n − g)))

How classes known by name alone are told is in `core/names_alone.py`.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.core.conjugate import (
    KAPPA,
    Frame,
    covariance,
    distances,
    log_density,
    tail_factor,
    text_slope,
)
from pbprompt.core.left_out_tables import Tables, left_out_tables, own_log_probability
from pbprompt.core.look_alikes import Alike
from pbprompt.core.names_alone import background_density, known_odds, names_alone

KAPPA_SPREAD = 1.0  # prior of ln κ, around ln KAPPA
TEMPER_SPREAD = 0.5  # prior of ln T
KAPPAS = tuple(2.0**power for power in range(-2, 7))
TEMPERS = tuple(math.exp(step / 4) for step in range(-7, 8))  # of T / T₀
NEGLIGIBLE = 0.05  # pairs (κ, T) below this weight, relative to the best, are dropped
GROWTH = 0.25  # of ln T by ln n


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
    """squared distance of left-out photographs to the nearest class, at κ = 2; empty for a single class"""
    odds: Float[Tensor, " n"]
    """log-odds that a left-out photograph shows a known class, ascending"""


def choose(
    frame: Frame,
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    scale: float,
    plain: Float[Tensor, "k d"] | None = None,
    alike: Alike | None = None,
) -> Choice:
    """From photographs in the eigenbasis (all, or a part that stands for them); `scale`: exp(logit scale).

    `plain`: the classes' texts as zero-shot has them, where the frame's are others; `alike`: the photographs'
    look-alikes. Both in the eigenbasis.
    """
    if frame.seen < 2:  # nothing to tell apart
        return _without_choice(frame, scale)
    known = frame.known
    column = torch.searchsorted(known, labels)  # of each label among the known
    alike = Alike.none(images) if alike is None else alike
    left = left_out_tables(frame, images, labels, alike, KAPPAS)
    near = left.nearest
    zero_shot = _spread(scale * images @ (frame.texts if plain is None else plain)[known].T)
    kappa, temper, weight, table = _pairs(frame, left, images, column, zero_shot, alike.weights)
    temper = temper * growth(frame, labels, left.remaining)
    sharp = float(temper[0]) * tail_factor(near, frame.width)
    photographs = sharp.unsqueeze(1) * table
    names = names_alone(frame, left, labels, photographs, sharp, scale, float(kappa[0]))
    ground = sharp * background_density(left.own_background, names.background, frame.width)
    odds = known_odds(photographs, ground, names.scale * left.own_cosines)
    return Choice(kappa, temper, weight, *names, near, odds.sort().values)


def growth(frame: Frame, labels: Int[Tensor, " n"], remaining: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """exp(¼ mean ln(n / (n − g))): T with all photographs of a class, against T without those left out."""
    several = remaining > 0
    if not several.any():
        return frame.centre.new_ones(())
    return (GROWTH * (frame.counts[labels[several]] / remaining[several]).log().mean()).exp()


def strata(choice: Choice, samples: int) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
    """κ and T at the middles of equal shares of their posterior: draws without chance."""
    order = choice.temper.argsort(stable=True)
    ends = choice.weight[order].cumsum(0)
    middles = (torch.arange(samples, dtype=ends.dtype, device=ends.device) + 0.5) / samples
    places = order[torch.searchsorted(ends, middles).clamp(max=len(order) - 1)]
    return choice.kappa[places], choice.temper[places]


def _without_choice(frame: Frame, scale: float) -> Choice:
    """Of one class: the middles of the priors."""
    number = frame.centre.new_tensor
    kappa, temper = number([KAPPA]), number([min(1.0, 2 / math.sqrt(frame.width))])
    names = (number(scale), number(1 + 1 / KAPPA), number(0.0), number(0.0))
    return Choice(kappa, temper, number([1.0]), *names, number([]), number([]))


def _pairs(
    frame: Frame,
    left: Tables,
    images: Float[Tensor, "n d"],
    column: Int[Tensor, " n"],
    zero_shot: float,
    counted: Float[Tensor, " n"],
) -> tuple[Float[Tensor, " j"], Float[Tensor, " j"], Float[Tensor, " j"], Float[Tensor, "n k"]]:
    """(κ, T, weight) of what is left of the grid, the best first, and its left-out log densities."""
    several, tables = left.several, left.densities
    informed = frame.seen > 2 or bool(several.any())
    if not informed:  # two single photographs leave nothing to compare
        sigma = covariance(frame)
        inside = distances(frame, sigma, text_slope(frame, sigma), images)
        every = [log_density(inside(kappa), frame.counts, kappa, frame.width) for kappa in KAPPAS]
        tables = torch.stack(every)[:, :, frame.known]
    tail = tail_factor(left.nearest, frame.width).unsqueeze(1)
    rows: list[tuple[float, float, float]] = []
    for kappa, table in zip(KAPPAS, tables, strict=True):
        scaled = tail * table
        usual = _spread(scaled[several] if frame.seen < 3 and informed else scaled)
        centre = zero_shot / usual if usual > 0 and zero_shot > 0 else 2 / math.sqrt(frame.width)
        for ratio in TEMPERS:
            score = -0.5 * (math.log(kappa / KAPPA) / KAPPA_SPREAD) ** 2
            score -= 0.5 * (math.log(ratio) / TEMPER_SPREAD) ** 2
            told = own_log_probability(scaled, column, centre * ratio)
            score += float((counted * told)[several].sum())
            rows.append((kappa, centre * ratio, score))
    kappa, temper, score = table.new_tensor(rows).T
    weight = score.softmax(0)
    order = weight.argsort(descending=True, stable=True)
    order = order[weight[order] > NEGLIGIBLE * weight.max()]
    weight = weight[order] / weight[order].sum()
    return kappa[order], temper[order], weight, tables[int(order[0]) // len(TEMPERS)]


def _spread(logits: Float[Tensor, "n k"]) -> float:
    """Root of the mean variance over classes."""
    return math.sqrt(float(logits.var(1).mean()))
