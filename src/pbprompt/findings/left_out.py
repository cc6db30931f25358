"""What the closed-form model, fitted to all labelled images but one, says of that one; for every image.

    p_ic = Σ_j w_j softmax_c( T_j h_i L_c⁻ⁱ(x_i; κ_j) )     odds_i: log-odds that x_i shows one of the classes

(κ_j, T_j, w_j) is the posterior that `core/evidence_choice.py` keeps. With an image go its look-alikes of the
same label: a copy must not vouch for a label. The left-out densities are exact, and cost one fit together.
An image whose class has no other cannot be judged: without it, its class is a mere name.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import (
    KAPPA,
    Frame,
    inflation,
    log_density,
    make_frame,
    tail_factor,
)
from pbprompt.core.evidence_choice import Choice, choose
from pbprompt.core.leave_one_out import leave_one_out
from pbprompt.core.likelihood import unit
from pbprompt.core.look_alikes import Alike, look_alikes
from pbprompt.core.names_alone import background_density, known_odds
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import learn_text_map, move

CELLS = 1 << 20  # of tables of images by classes at once
CHOOSING = 2048  # images that stand for all when κ and T are chosen
LARGEST_CLASS = 8192  # images of a class, up to which look-alikes are looked for: all its pairs are compared


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
    x, plain = unit(images).double(), unit(texts).double()
    statistics = Statistics.of(x, labels, len(texts))
    known = statistics.counts.nonzero().squeeze(1)
    if len(known) < 2:
        return None
    frame = make_frame(statistics, _moved_texts(statistics, plain, known))
    z = x @ frame.basis
    few = int(statistics.counts.max()) <= LARGEST_CLASS
    alike = look_alikes(z, labels) if few else Alike.none(z)
    some = torch.arange(0, len(z), -(-len(z) // CHOOSING))
    choice = choose(frame, z[some], labels[some], scale, plain @ frame.basis, alike.at(some))
    parts = [
        _answers(frame, choice, z[rows], labels[rows], alike.at(rows))
        for rows in torch.arange(len(z)).split(max(1, CELLS // max(z.shape[1], len(texts))))
    ]
    return LeftOutAnswers(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _moved_texts(
    statistics: Statistics, texts: Float[Tensor, "k d"], known: Int[Tensor, " seen"]
) -> Float[Tensor, "k d"]:
    """Texts where the other classes' photographs put them, as the model's own are."""
    counts = statistics.counts[known]
    text_map = learn_text_map(statistics.sums[known] / counts.unsqueeze(1), counts, texts[known])
    place = torch.full((len(texts),), -1)
    place[known] = torch.arange(len(known))
    return move(text_map, texts, place)


def _answers(
    frame: Frame, choice: Choice, images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], alike: Alike
) -> LeftOutAnswers:
    known, d = frame.known, frame.width
    left = leave_one_out(frame, images, labels, alike)
    near = (left.distances(KAPPA) / inflation(left.counts, KAPPA))[:, known].amin(1)
    tail = tail_factor(near, d)
    densities = {
        kappa: tail.unsqueeze(1) * log_density(left.distances(kappa), left.counts, kappa, d)[:, known]
        for kappa in choice.kappa.unique().tolist()
    }
    table = images.new_zeros(len(images), len(frame.counts))
    for kappa, temper, weight in zip(*(column.tolist() for column in choice[:3]), strict=True):
        table[:, known] += weight * (temper * densities[kappa]).softmax(1)
    best, temper = densities[float(choice.kappa[0])], float(choice.temper[0])
    ground = temper * tail * background_density(left.own_background, choice.background, d)
    odds = known_odds(temper * best, ground, choice.name_scale * left.own_cosines[:, known])
    return LeftOutAnswers(table.float(), odds.float(), left.several)
