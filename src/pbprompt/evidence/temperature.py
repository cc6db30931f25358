"""How sure should a classifier be? One temperature for all its logits (Guo et al., ICML 2017).

    T* = argmin_T  −(1/n) Σ_i log softmax(z_i / T)[y_i]

| symbol | name here | meaning                                                          |
|--------|-----------|------------------------------------------------------------------|
| z      | `logits`  | of held-out images, [n, c]; log probabilities will do as well    |
| y      | `labels`  | their true classes                                               |
| β      |           | 1/T: the loss is convex in it, so there is one minimum           |

No image changes its class: T only says how far to trust the order. T > 1: the classifier was too sure.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError

# where every image is right by a margin the best T is 0; where chance wins, infinity
LOWEST, HIGHEST = 1e-3, 1e3
EXACT = 1e-9  # of log T
IMPOSSIBLE = -1e4  # a logit of minus infinity would make every temperature's loss infinite


def fit_temperature(logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"], smoothing: float = 0.0) -> float:
    """T* between 1e-3 and 1e3, by Newton's method on log β with bisection wherever it leaves the bracket.

    `smoothing`: the share of each target that all classes divide among them. Without it a classifier that
    is right on a handful of images would be told to be certain; Platt's 1/(n + 2) leaves the doubt that so
    few images leave.
    """
    if not len(logits):
        raise InputError("a temperature needs labelled images that were not trained on: there are none")
    z = logits.detach().double()
    z = (z - z.amax(-1, keepdim=True)).clamp_min(IMPOSSIBLE)
    of_label = z.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    of_label = (1 - smoothing) * of_label + smoothing * z.mean(-1)
    low, high, u = -math.log(HIGHEST), -math.log(LOWEST), 0.0
    while high - low > EXACT:
        slope, curvature = _derivatives(z, of_label, math.exp(u))
        low, high = (low, u) if slope > 0 else (u, high)
        step = u - slope / curvature if curvature > 0 else math.nan
        if abs(step - u) <= EXACT:
            break
        u = step if low < step < high else (low + high) / 2
    return math.exp(-u)


def _derivatives(z: Float[Tensor, "n c"], of_label: Float[Tensor, " n"], beta: float) -> tuple[float, float]:
    """Of the loss by β, mean(E_p[z] − z_y), and that slope's own derivative by log β, β·mean(Var_p[z])."""
    p = (beta * z).softmax(-1)
    mean = (p * z).sum(-1)
    variance = (p * (z - mean.unsqueeze(-1)).square()).sum(-1)
    return (mean - of_label).mean().item(), beta * variance.mean().item()
