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
The biases sum to 0, which fixes what the loss leaves open.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

STEPS = 1000


class Affine(NamedTuple):
    """logits = x Wᵀ + b."""

    weights: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]

    def logits(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        return x @ self.weights.T + self.bias


def logistic_regression(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    strengths: Sequence[float],
    tolerance: float = 1e-8,
) -> list[Affine]:
    """The solution for each C in the dtype of x, each search starting from the last solution.

    Every class of `labels` (0 to their largest) should have an image: the bias of another has no minimum.
    `tolerance` bounds every entry of the loss's gradient by the scaled variables.
    """
    centre = x.mean(0)
    rows, spread, directions = torch.linalg.svd(x - centre, full_matrices=False)
    classes = int(labels.max()) + 1
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
    """L-BFGS on the mean loss + ½ Σ penalty·V²."""
    values = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [values],
        max_iter=STEPS,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = F.cross_entropy(inputs @ values.T, labels) + 0.5 * (penalty * values.square()).sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimiser.step(loss)
    return values.detach()
