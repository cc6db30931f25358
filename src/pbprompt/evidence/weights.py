"""How much each expert counts: a small convex fit on photographs that every expert has answered held out.

    p(c | x) = softmax_c Σ_k w_k E_k[x, c],   w > 0
    w = argmin  −Σ_i a_i ln p(y_i | x_i) + A Σ_k (w_k/w⁰_k − ln w_k/w⁰_k)            a Gamma prior about w⁰
    ln w ~ N(ln ŵ, (F + B I)⁻¹)                                                       after Laplace

| symbol | name here   | meaning                                                              |
|--------|-------------|----------------------------------------------------------------------|
| E_k    | `scores`    | what expert k says of photograph x and class c, x left out           |
| w⁰     | `usual`     | the weights before any photograph is judged                          |
| A      | `WORTH`     | how many photographs w⁰ is worth, about                              |
| a      | `shares`    | how much each photograph counts, once unless told                    |
| F      |             | Fisher's information of ln w at ŵ                                    |
| B      | `DOUBT`     | how little w⁰ is doubted: its logarithms have deviations of B^−½     |

(H, the curvature at ŵ, is F + A I; but w⁰ is known better than a photograph would have it.)

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
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.expert import HeldOutPhotographs, Kind

WORTH = 1.0
DOUBT = 4.0
STEPS = 100


class Weights(NamedTuple):
    """The fit of ln w, from which w is drawn."""

    log: Float[Tensor, " e"]
    root: Float[Tensor, "e e"]
    """L with L Lᵀ = (F + B I)⁻¹"""

    @property
    def best(self) -> Float[Tensor, " e"]:
        return self.log.exp()

    def draws(self, samples: int) -> Float[Tensor, "s e"]:
        """Draws without chance: a lattice of the unit cube, as normal quantiles. Of one, the best."""
        if samples == 1:
            return self.best.unsqueeze(0)
        size = len(self.log)
        ratio = _plastic(size)
        steps = torch.tensor([ratio ** -(place + 1) for place in range(size)], dtype=torch.float64)
        cube = (0.5 + torch.arange(1, samples + 1, dtype=torch.float64).unsqueeze(1) * steps) % 1
        normal = torch.special.ndtri(cube).to(self.log)
        return (self.log + normal @ self.root.T).exp()


def combined(scores: Float[Tensor, "e b k"], draws: Float[Tensor, "s e"]) -> Float[Tensor, "s b k"]:
    """Σ_k w_k E_k, of each draw of the weights: all that is ever made of what several experts say."""
    return torch.einsum("se,ebk->sbk", draws.to(scores), scores)


def fit_weights(
    scores: Float[Tensor, "e n c"],
    labels: Int[Tensor, " n"],
    usual: Float[Tensor, " e"],
    shares: Float[Tensor, " n"] | None = None,
) -> Weights:
    """By Newton's method."""
    scaled = scores.mT * usual[:, None, None]
    own = scaled.gather(1, labels.expand(len(usual), -1).unsqueeze(1))
    ahead = (scaled - own).contiguous()  # of the true class; [e, c, n], since sums over few classes are slow
    counted = torch.ones_like(ahead[0, 0]) if shares is None else shares

    def loss(place: Float[Tensor, " e"]) -> Float[Tensor, ""]:
        told = torch.tensordot(place.exp(), ahead, dims=1).logsumexp(0)
        return (counted * told).sum() + WORTH * (place.exp() - place).sum()

    def curves(place: Float[Tensor, " e"]) -> tuple[Float[Tensor, " e"], Float[Tensor, "e e"]]:
        """The slope in ln w, and Fisher's information."""
        w = place.exp()
        said = torch.tensordot(w, ahead, dims=1).softmax(0)
        mean = (said * ahead).sum(1)
        part = ((said * counted).sqrt() * ahead).flatten(1)
        spread = part @ part.T - (mean * counted) @ mean.T
        slope = w * (mean @ counted) + WORTH * (w - 1)
        return slope, w.unsqueeze(1) * spread * w

    def step(place: Float[Tensor, " e"]) -> Float[Tensor, " e"]:
        slope, information = curves(place)
        # Newton's of the loss in w, where it is convex, as a step in ln w
        return torch.linalg.solve(information + WORTH * torch.eye(len(place)).to(place), slope)

    place = newton(torch.zeros_like(usual), loss, step)
    precision = curves(place)[1] + DOUBT * torch.eye(len(usual)).to(usual)
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    return Weights(usual.log() + place, root)


def newton(
    place: Float[Tensor, " e"],
    loss: Callable[[Float[Tensor, " e"]], Float[Tensor, ""]],
    step: Callable[[Float[Tensor, " e"]], Float[Tensor, " e"]],
) -> Float[Tensor, " e"]:
    """Where a loss of a few numbers is least; a step is halved until it helps, and does not leap far off."""
    now = loss(place)
    for _ in range(STEPS):
        move = step(place)
        move = move * min(1.0, 2.0 / float(move.abs().max().clamp(min=1e-30)))
        while (after := loss(place - move)) > now and float(move.abs().max()) > 1e-9:
            move = move / 2
        if after > now or float(move.abs().max()) < 1e-9:
            break
        place, now = place - move, after
    return place


def _plastic(size: int) -> float:
    """The root of x^(size + 1) = x + 1, whose powers make an even lattice."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (size + 1))
    return root


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
