"""How far to trust names, means and photographs: w⁰ before any is judged, w after.

Before any photograph is judged, as where every class has a single one, the weights are

    w⁰ = ((1 − ¾ρU²) ρ (¾ T₀, 2, 1),  max(1 − ρ, U) ψ₀)

of Gaussians, kernel regression, nearest photographs and names; of those that photographs made, divided by the
number of backbones.

| symbol | meaning                                                                                        |
|--------|------------------------------------------------------------------------------------------------|
| ρ      | N/(N + 20): few photographs say little                                                         |
| T₀     | spread of e^scale x·t_c over the classes / spread of L_c: a mean is as sure as ¾ of a prompt   |
| ψ₀     | the temperature at which names alone tell the photographs best                                 |
| I      | the share of ln K that they then tell of them                                                  |
| U      | I min(1, ψ₀): what names tell as far as they mean what the backbone learned that names mean    |

Two witnesses that err together are not added up as if they were independent: where one is much the stronger,
the other's weight falls. One photograph per class is the weaker one where names tell nearly all (U → 1), and
the stronger one where they tell little, and there the class means hold what names say already. ψ₀ < 1 says
that names are surer than they should be, which no backbone is of names such as those it was trained on.

A held-out photograph is judged by n − g of its class and as many of the others, a new one by n. The spread of
L stays (`experts/gaussian.py`), but means of more photographs are nearer to the truth: held-out scores of the
Gaussians count ((n − g)/n)^¼ times, so that w_1 is what a new image needs.
"""

import math
from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.evidence.expert import HeldOutPhotographs, Kind
from pbprompt.evidence.weights import Weights, combined, fit_weights

FEW = 20.0  # photographs, in w⁰
UNNAMED = 0.1  # T₀ where names say nothing
YIELDS = 0.75  # of the weight of photographs, to names that tell all
GROWTH = 0.25  # of ln w_1 by ln n

Views = Sequence[Sequence[Kind]]  # the experts of each backbone


def name_rows(experts: Views) -> list[int]:
    """Of all experts, those that no photograph made."""
    return [row for row, each in enumerate(chain.from_iterable(experts)) if not each.from_photographs]


def names_alone(experts: Views, left: HeldOutPhotographs) -> tuple[Float[Tensor, " v"], Float[Tensor, ""]]:
    """ψ₀ and I: nothing of a name was fitted to its photographs, so that none need be held out."""
    rows = name_rows(experts)
    by_name, labels, shares = left.scores[rows], left.labels, left.shares
    if by_name.shape[2] < 2:
        return by_name.new_ones(len(rows)), by_name.new_zeros(())
    usual = by_name.new_full((len(rows),), 0.5 / len(rows))
    scale = fit_weights(by_name, labels, usual, shares).best
    told = combined(by_name, scale.unsqueeze(0))[0].log_softmax(1)
    mean = (shares * told.gather(1, labels.unsqueeze(1)).squeeze(1)).sum() / shares.sum()
    return scale, (1 + mean / math.log(by_name.shape[2])).clamp(min=0)


def usual_weights(
    experts: Views,
    left: HeldOutPhotographs,
    name_scale: Float[Tensor, " v"],
    information: Float[Tensor, ""],
    photographs: float,
    absorbed: float = 0.0,
) -> Float[Tensor, " e"]:
    """w⁰"""
    scores, several = left.scores, left.several
    rows = several if several.any() else torch.ones_like(several)
    told = scores.shape[2] > (1 if several.any() else 2)  # of two single photographs none is left to compare
    spreads = scores[:, rows].var(2).mean(1).sqrt().tolist() if told else [0.0] * len(scores)
    spoken = scores[name_rows(experts)].any(2).any(1).to(name_scale.device)
    useful = told_by_names(information, name_scale[spoken])
    yields = 1 - YIELDS * enough(photographs) * useful**2
    usual, row = [], 0
    for view, by_name in zip(experts, name_scale.tolist(), strict=True):
        mine = spreads[row : row + len(view)]
        names = next((s for s, each in zip(mine, view, strict=True) if not each.from_photographs), 0.0)
        for spread, each in zip(mine, view, strict=True):
            if not each.from_photographs:
                usual.append(max(1 - enough(photographs), useful) * by_name)
                continue
            as_sure = names / spread if names > 0 and spread > 0 else UNNAMED
            often = each.usual * as_sure if each.in_spreads else each.usual
            usual.append(yields * enough(photographs + absorbed) * often / len(experts))
        row += len(view)
    return scores.new_tensor(usual).clamp(min=1e-6)


def fit_trust(
    experts: Views,
    left: HeldOutPhotographs,
    name_scale: Float[Tensor, " v"],
    information: Float[Tensor, ""],
    counts: Float[Tensor, " k"],
    absorbed: float = 0.0,
) -> Weights:
    """w, from photographs whose class has others left."""
    several = left.several
    usual = usual_weights(experts, left, name_scale, information, float(counts.sum()), absorbed)
    grows = usual.new_tensor([GROWTH * kind.in_spreads for kind in chain.from_iterable(experts)])
    scores = left.scores[:, several] * (left.left[several].log() * grows.unsqueeze(1)).exp().unsqueeze(2)
    return fit_weights(scores, left.labels[several], usual, left.shares[several])


def told_by_names(information: Float[Tensor, ""], name_scale: Float[Tensor, " v"]) -> float:
    """U, of the backbones that read names."""
    return float(information) * min(1.0, float(name_scale.sum()))


def enough(photographs: float) -> float:
    """ρ"""
    return photographs / (photographs + FEW)
