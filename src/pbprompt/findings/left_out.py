"""What the closed-form model, fitted to all labelled images but one, says of that one; for every image.

    p_ic = Σ_j w_j softmax_c( T_j L_c⁻ⁱ(x_i; κ_j) )      odds_i: log-odds that x_i shows one of the classes

(κ_j, T_j, w_j) is the posterior that `core/evidence_choice.py` keeps. The left-out densities are exact, and
cost one fit together. An image that is its class's only one cannot be judged: without it, its class is a mere
name.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import Statistics, log_density, make_frame
from pbprompt.core.evidence_choice import background_density, choose, known_odds
from pbprompt.core.leave_one_out import leave_one_out
from pbprompt.core.likelihood import unit

CELLS = 1 << 20  # of tables of images by classes at once
CHOOSING = 2048  # images that stand for all when κ and T are chosen


class LeftOutAnswers(NamedTuple):
    """Of n images, in the order given."""

    probabilities: Float[Tensor, "n k"]
    odds: Float[Tensor, " n"]
    judged: Bool[Tensor, " n"]
    """its class has another image"""


def left_out_answers(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "k d"], scale: float
) -> LeftOutAnswers | None:
    """For image features and the text features of the class names; `scale`: exp(logit scale).

    None where fewer than two classes have images: there is nothing to tell apart.
    """
    x = unit(images).double()
    frame = make_frame(Statistics.of(x, labels, len(texts)), unit(texts))
    if frame.seen < 2:
        return None
    z = x @ frame.basis
    some = torch.arange(0, len(z), -(-len(z) // CHOOSING))
    choice = choose(frame, z[some], labels[some], scale)
    known, d = frame.known, frame.width
    rows = max(1, CELLS // max(d, len(texts)))
    probabilities, odds = [], []
    for part, own in zip(z.split(rows), labels.split(rows), strict=True):
        left = leave_one_out(frame, part, own)
        table = part.new_zeros(len(part), len(texts))
        densities = {
            kappa: log_density(left.distances(kappa), left.counts, kappa, d)[:, known]
            for kappa in choice.kappa.unique().tolist()
        }
        for kappa, temper, weight in zip(*(column.tolist() for column in choice[:3]), strict=True):
            table[:, known] += weight * (temper * densities[kappa]).softmax(1)
        best, temper = densities[float(choice.kappa[0])], float(choice.temper[0])
        ground = background_density(left.own_background, choice.background, d)
        names = choice.name_scale * left.own_cosines[:, known]
        probabilities.append(table)
        odds.append(known_odds(temper * best, temper * ground, names))
    return LeftOutAnswers(torch.cat(probabilities).float(), torch.cat(odds).float(), frame.counts[labels] > 1)
