"""Multinomial logistic regression with an L2 penalty, to convergence.

    min over W, b of   C·Σ_i −log softmax(W x_i + b)[y_i] + ½‖W‖²

| symbol | name here  | meaning                                                         |
|--------|------------|-----------------------------------------------------------------|
| x, y   | `x`        | features [n, d] and labels                                      |
| C      | `strength` | how far the images are trusted against W = 0; scikit-learn's C  |
| W, b   |            | weights [c, d] and biases [c], which are not penalised          |

The search is over other variables, which changes nothing but its speed: features are centred (the free biases
take the shift up) and turned to their principal directions, out of whose span the penalty would drive W back,
and every direction is scaled so that the loss curves alike along all of them where all classes are as likely.
The biases sum to 0, which fixes what the loss leaves open. Newton's method gets to the minimum in a few dozen
steps even under a weak penalty, where it is far from 0.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

STEPS = 200
CURVATURES = 250  # most products with the Hessian a step
ENOUGH = 1e-4  # of the decrease that the slope promises; a step is halved until it brings that much
ALONE = 1 << 24  # multiplications in a product of features and weights up to which one processor is faster
SMALLEST = 1e-6  # step below which the arithmetic is at its end


class Affine(NamedTuple):
    """logits = x Wᵀ + b."""

    weights: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]

    def logits(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        return x @ self.weights.T + self.bias


def logistic_regression(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], strengths: Sequence[float], tolerance: float = 1e-8
) -> list[Affine]:
    """The solution for each C in the dtype of x, each search starting from the last solution.

    Every class of `labels` (0 to their largest) should have an image: the bias of another has no minimum.
    `tolerance` bounds every entry of the loss's gradient by the scaled variables.
    """
    classes = int(labels.max()) + 1
    with ExitStack() as afterwards:
        if x.device.type == "cpu" and x.numel() * classes <= ALONE:
            # thousands of small products, after each of which several processors would wait for another
            afterwards.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        centre = x.mean(0)
        rows, spread, directions = torch.linalg.svd(x - centre, full_matrices=False)
        probe = x.new_zeros(classes, len(spread) + 1)  # the bias is the last column
        inputs = torch.cat([rows * spread, x.new_ones(len(x), 1)], dim=1)
        found = []
        for strength in strengths:
            penalty = torch.full_like(inputs[0], 1 / (strength * len(x)))
            penalty[-1] = 0
            scale = (inputs.square().mean(0) / classes + penalty).rsqrt()
            probe = scale * _solve(inputs * scale, labels, probe / scale, penalty * scale.square(), tolerance)
            weights = probe[:, :-1] @ directions
            bias = probe[:, -1] - weights @ centre
            found.append(Affine(weights, bias - bias.mean()))
        return found


def _solve(
    inputs: Float[Tensor, "n r"],
    labels: Int[Tensor, " n"],
    start: Float[Tensor, "c r"],
    penalty: Float[Tensor, " r"],
    tolerance: float,
) -> Float[Tensor, "c r"]:
    """Newton's method on the mean loss + ½ Σ penalty·V²; each step is shortened until the loss falls."""
    truth = F.one_hot(labels, len(start)).to(inputs)

    def look(values: Float[Tensor, "c r"]) -> tuple[Float[Tensor, ""], Float[Tensor, "n c"]]:
        logs = F.log_softmax(inputs @ values.T, dim=1)
        return 0.5 * (penalty * values.square()).sum() - (truth * logs).sum() / len(labels), logs

    values, (loss, logs) = start, look(start)
    rounding = torch.finfo(inputs.dtype).eps
    for _ in range(STEPS):
        p = logs.exp()
        slope = (p - truth).T @ inputs / len(labels) + penalty * values
        if slope.abs().max() <= tolerance:
            break
        step = _newton_step(inputs, p, slope, penalty, tolerance)
        promised, size = (slope * step).sum(), 1.0
        while size > SMALLEST:
            lower, logs = look(values + size * step)
            if lower <= loss + ENOUGH * size * promised + rounding * loss:
                break
            size /= 2
        else:
            break
        values, loss = values + size * step, lower
    return values


def _newton_step(
    inputs: Float[Tensor, "n r"],
    p: Float[Tensor, "n c"],
    slope: Float[Tensor, "c r"],
    penalty: Float[Tensor, " r"],
    tolerance: float,
) -> Float[Tensor, "c r"]:
    """−H⁻¹·slope by conjugate gradients, preconditioned by H's diagonal; H itself is never made.

    The nearer the minimum, the more exactly, which makes Newton's steps converge faster than linearly; but
    never more exactly than the tolerance asks.
    """
    diagonal = (p * (1 - p)).T @ inputs.square() / len(inputs) + penalty
    step, rest = torch.zeros_like(slope), -slope
    direction = scaled = rest / diagonal
    power = (rest * scaled).sum()
    goal = power * slope.abs().max().clamp(max=1 / 16)
    for _ in range(CURVATURES):
        change = inputs @ direction.T
        change = p * (change - (p * change).sum(1, keepdim=True))
        curved = change.T @ inputs / len(inputs) + penalty * direction
        size = power / (direction * curved).sum()
        step, rest = step + size * direction, rest - size * curved
        scaled = rest / diagonal
        power, before = (rest * scaled).sum(), power
        if power <= goal or rest.abs().max() <= tolerance / 2:
            break
        direction = scaled + power / before * direction
    return step
