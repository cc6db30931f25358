"""Which images are worth a label: by doubt, by disagreement, or by doubt spread over what the images show.

    margin_i = 1 − (p_i(1) − p_i(2))                    1 where the two likeliest classes are equally likely
    diverse: draw i with probability ∝ margin_i · min_{j drawn before} ‖x_i − x_j‖²

The latter is k-means++ with weights: what the model doubts, but not the same doubt twenty times.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.similarity import unit

By = Literal["margin", "epistemic", "diverse", "random"]
RULES: tuple[By, ...] = get_args(By)


def margin_doubt(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """1 less the lead of the likeliest class over the next."""
    if probabilities.shape[1] < 2:
        return torch.zeros(len(probabilities))
    first, second = probabilities.topk(2, dim=1).values.unbind(1)
    return (1 - (first - second)).clamp(min=0)  # rounding may put a probability above 1


def spread_out(
    features: Float[Tensor, "n d"], weights: Float[Tensor, " n"], count: int, generator: torch.Generator
) -> Int[Tensor, " count"]:
    """Distinct rows, each drawn by its weight times the squared distance to those drawn before."""
    x = unit(features)
    nearest = torch.ones_like(weights)
    free = torch.ones_like(weights)
    drawn: list[int] = []
    while len(drawn) < count:
        chances = (weights * nearest * free).double()
        if not chances.sum() > 0:  # copies of what was drawn, or all of it certain
            chances = free.double()
        row = int(torch.multinomial(chances, 1, generator=generator))
        distance = (x - x[row]).square().sum(1)
        nearest = torch.minimum(nearest, distance) if drawn else distance
        free[row] = 0
        drawn.append(row)
    return torch.tensor(drawn)


def choose_rows(
    features: Float[Tensor, "n d"],
    scores: Float[Tensor, " n"],
    count: int,
    by: By,
    generator: torch.Generator,
) -> Int[Tensor, " count"]:
    """The rows to label, in order; `scores` say how worthwhile each is by itself, 0 or more."""
    if by not in RULES:
        raise InputError(f"by is {by!r}: use {', '.join(RULES)}")
    if not 1 <= count <= len(scores):
        raise InputError(
            f"{count:,} images to choose, and there are {len(scores):,}: give 1 to {len(scores):,}"
        )
    if by == "random":
        return torch.randperm(len(scores), generator=generator)[:count]
    if by == "diverse":
        return spread_out(features, scores, count, generator)
    return scores.sort(descending=True, stable=True).indices[:count]
