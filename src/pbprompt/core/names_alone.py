"""Classes of which there is a name and no photograph, beside those that have some.

Such a class cannot be scored by a Gaussian of the others' width, whose distances the photographs set:

    logit_c(x) = T h [−½ ‖x − b‖²_P / ι₀ − ½ d ln ι₀] + ψ (x − b)·t̃_c + δ     the background, tilted by a name

| symbol | meaning                                                                                           |
|--------|---------------------------------------------------------------------------------------------------|
| ψ      | logit scale at which names alone, each photograph's class out of b and t̄, tell classes best       |
| ι₀     | how much wider than Σ the background is: the mean of left-out ‖x − b‖²_P / d                      |
| δ      | makes both kinds of classes comparable: fitted to known classes, half of them treated as names    |
| T, h   | temperature and tail factor of the photographs' part (`core/evidence_choice.py`)                  |
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.core.conjugate import Frame
from pbprompt.core.left_out_tables import Tables, logsumexp_of, own_log_probability

NAME_SPREAD = 0.5  # prior of ln ψ, around the backbone's own scale
NAME_SCALES = tuple(math.exp(step / 8) for step in range(-24, 9))
OFFSET_SPREAD = 1.0  # prior of δ
BACKGROUND_COUNT = 4.0  # photographs that the prior of ι₀ is worth
HALVINGS = 4  # random halves of the known classes, and their complements, to fit δ


class NamesAlone(NamedTuple):
    """What it takes to tell classes by their names."""

    scale: Float[Tensor, ""]
    """ψ"""
    background: Float[Tensor, ""]
    """ι₀"""
    offset: Float[Tensor, ""]
    """δ"""
    information: Float[Tensor, ""]
    """the share of ln K that names alone tell of the photographs' classes, 0 to 1"""


def names_alone(
    frame: Frame,
    left: Tables,
    labels: Int[Tensor, " n"],
    photographs: Float[Tensor, "n k"],
    sharp: Float[Tensor, " n"],
    scale: float,
    kappa: float,
) -> NamesAlone:
    """From left-out photographs, their logits under the known classes, T h of each, and the best κ."""
    known, several, d = frame.known, left.several, frame.width
    column = torch.searchsorted(known, labels)
    cosines = left.cosines
    name_scale = _name_scale(cosines, column, scale)
    wide = left.background[several].sum() / d
    background = (BACKGROUND_COUNT * (1 + 1 / kappa) + wide) / (BACKGROUND_COUNT + several.sum())
    ground = sharp * background_density(left.background, background, d)
    # the tilt by a name must not make the background denser on the average
    offset = math.log(cosines.numel()) - (name_scale * cosines.flatten()).logsumexp(0)
    if several.any() and frame.seen > 2:
        names = (ground + offset).unsqueeze(1) + name_scale * cosines
        counts = torch.where(several, frame.counts[labels], math.inf)
        offset = offset + _offset(photographs, names, column, counts)
    told = own_log_probability(cosines, column, float(name_scale)).mean()
    information = (1 + told / math.log(frame.seen)).clamp(min=0)
    return NamesAlone(name_scale, background, torch.as_tensor(offset), information)


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


def _name_scale(cosines: Float[Tensor, "n k"], column: Int[Tensor, " n"], scale: float) -> Float[Tensor, ""]:
    def score(factor: float) -> float:
        fit = float(own_log_probability(cosines, column, factor * scale).sum())
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
    of an interval find its top. With A the classes that are names, B the others and a, b the logarithms of
    the sums of exp over them, a photograph's score is its own logit, plus δ if in A, less ln(eᵟ⁺ᵃ + eᵇ).
    """
    classes = photographs.shape[1]
    order = torch.rand(HALVINGS, classes, generator=torch.Generator().manual_seed(0)).argsort(1)
    halves = (order < classes / 2).to(photographs.device)
    own_name, own_photograph = (
        table.gather(1, column.unsqueeze(1)).squeeze(1) for table in (names, photographs)
    )
    parts = []
    for half in halves:
        sides = (half.nonzero().squeeze(1), (~half).nonzero().squeeze(1))
        a, b = ([logsumexp_of(table, side) for side in sides] for table in (names, photographs))
        parts += [(half[column], a[0], b[1]), (~half[column], a[1], b[0])]

    def score(offset: float) -> float:
        fits = (
            torch.where(named, own_name + offset, own_photograph) - torch.logaddexp(a + offset, b)
            for named, a, b in parts
        )
        total = float(sum((fit / counts).sum() for fit in fits))
        return total / len(parts) - 0.5 * (offset / OFFSET_SPREAD) ** 2

    low, high = -10.0, 10.0
    while high - low > 0.02:
        third = (high - low) / 3
        if score(low + third) < score(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2
