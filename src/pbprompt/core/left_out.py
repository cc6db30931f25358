"""What the conjugate model without a photograph says of that photograph: answers that can be checked.

    p⁻ⁱ(c | x_i) = Σ_j w_j softmax_c( logit_c(x_i; κ_j, T_j) of the model without image i )
    odds_i: log-odds that x_i shows one of the classes with photographs, at the most probable κ and T

The posterior of (κ, T), the rest of the choice and where names were moved to stay those of all photographs:
one image changes them little, and making them anew for each would cost n fits. T is taken as it was before it
was let grow for the image that now is missing. Everything else is carried through (`leave_one_out.py`),
look-alikes leave with their image.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import KAPPA, Frame, inflation, log_density, tail_factor
from pbprompt.core.evidence_choice import Choice, growth
from pbprompt.core.leave_one_out import leave_one_out
from pbprompt.core.left_out_tables import CELLS, row_blocks
from pbprompt.core.look_alikes import Alike
from pbprompt.core.names_alone import background_density, known_odds


class LeftOutAnswers(NamedTuple):
    """Of each photograph, left out."""

    probabilities: Float[Tensor, "n c"]
    nearest: Float[Tensor, " n"]
    """squared distance to the nearest class, at κ = 2"""
    odds: Float[Tensor, " n"]
    """that it shows one of the classes with photographs"""
    several: Bool[Tensor, " n"]
    """whether its class has photographs left: without, the answer is about its name"""


def with_names(frame: Frame, texts: Float[Tensor, "k d"]) -> Frame:
    """The frame with more classes, of which only the texts are known; its centres stay."""
    return frame._replace(
        means=torch.cat([frame.means, frame.means.new_zeros(len(texts), frame.width)]),
        counts=torch.cat([frame.counts, frame.counts.new_zeros(len(texts))]),
        texts=torch.cat([frame.texts, texts.to(frame.texts) @ frame.basis]),
    )


def left_out_answers(
    frame: Frame,
    choice: Choice,
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    columns: Int[Tensor, " c"],
    alike: Alike | None = None,
) -> LeftOutAnswers:
    """For photographs in the eigenbasis, among some classes: columns of the frame."""
    known = frame.known
    gone = Alike.none(images) if alike is None else alike
    n = frame.counts[labels]
    remaining = torch.where(n - gone.sizes > 1e-9 * n, n - gone.sizes, 0.0)
    grown = growth(frame, labels, remaining)
    every = torch.arange(len(images), device=labels.device)
    parts = []
    for rows in row_blocks(len(images), max(len(frame.counts), frame.width), CELLS):
        left = leave_one_out(frame, images[rows], labels[rows], gone.at(every[rows]))
        near = (left.distances(KAPPA) / inflation(left.counts, KAPPA))[:, known].amin(1)
        tail = tail_factor(near, frame.width) / grown
        densities = {
            kappa: log_density(left.distances(kappa), left.counts, kappa, frame.width)
            for kappa in choice.kappa.unique().tolist()
        }
        ground = background_density(left.own_background, choice.background, frame.width)
        names = choice.name_scale * left.own_cosines
        said = images.new_zeros(len(near), len(columns))
        for weight, kappa, temper in zip(
            choice.weight.tolist(), choice.kappa.tolist(), choice.temper, strict=True
        ):
            sharp = (temper * tail).unsqueeze(1)
            # T h L_c of classes with photographs; of the others, the background tilted by the name
            alone = sharp * ground.unsqueeze(1) + choice.offset + names
            logits = torch.where(left.counts > 0, sharp * densities[kappa], alone)
            said += weight * logits[:, columns].softmax(1)
        sharp = choice.temper[0] * tail
        best = sharp.unsqueeze(1) * densities[float(choice.kappa[0])]
        odds = known_odds(best[:, known], sharp * ground, names[:, known])
        parts.append(LeftOutAnswers(said, near, odds, left.several))
    return LeftOutAnswers(*(torch.cat(values) for values in zip(*parts, strict=True)))
