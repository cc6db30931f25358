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
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
