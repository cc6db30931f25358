"""The classes of the conjugate model as rows, so that an image's logits are one product of matrices.

    class with photographs:  logit = h T [u·(P(μ̂ − b)/ι) − ½ ‖u‖²_P/ι − ½ ‖μ̂ − b‖²_P/ι − ½ d ln ι]
    class known by name:     logit = h T [−½ ‖u‖²_P/ι₀ − ½ d ln ι₀] + ψ u·t̃ + δ                u = x − b

Side by side in a row: a direction of d numbers, the weight of ‖u‖²_P, a constant, δ, and 1 where the
direction comes from photographs, and so is multiplied by the tail's factor h too.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.core.conjugate import Frame, inflation, posterior_means
from pbprompt.core.names_alone import NamesAlone, background_density

EXTRA = 4  # numbers of a row behind its direction


class Rows(NamedTuple):
    """The parts of rows."""

    direction: Float[Tensor, "*s c d"]
    weight: Float[Tensor, "*s c"]
    constant: Float[Tensor, "*s c"]
    free: Float[Tensor, "*s c"]
    by_photographs: Float[Tensor, "*s c"]


def split_rows(bank: Float[Tensor, "*s c k"]) -> Rows:
    return Rows(bank[..., :-EXTRA], *bank[..., -EXTRA:].unbind(-1))


def asked_frame(frame: Frame, texts: Float[Tensor, "c d"], labels: Int[Tensor, " c"]) -> Frame:
    """The frame of the classes with these labels (−1: none) and texts, around the centres of all."""
    at = labels.clamp(min=0)
    counts = torch.where(labels >= 0, frame.counts[at], 0.0)
    return frame._replace(means=frame.means[at], counts=counts, texts=texts @ frame.basis)


def make_rows(
    asked: Frame,
    sigma: Float[Tensor, " d"],
    slope: float,
    names: NamesAlone,
    kappa: float,
    temper: float,
) -> Float[Tensor, "c k"]:
    """Of the classes asked for, whose texts are in the eigenbasis; rows in the space of images."""
    d, counts = asked.width, asked.counts
    by_name, by_photographs = posterior_means(asked, sigma, slope, kappa)
    mean = by_name + by_photographs
    iota = inflation(counts, kappa)
    constant = -0.5 * (mean.square() / sigma).sum(1) / iota - 0.5 * d * iota.log()
    has = counts > 0
    ground = background_density(names.background.new_zeros(1), names.background, d)
    direction = torch.where(
        has.unsqueeze(1),
        temper * mean / sigma / iota.unsqueeze(1),
        names.scale * (asked.texts - asked.text_centre),
    )
    behind = (
        temper * torch.where(has, 1 / iota, 1 / names.background),
        temper * torch.where(has, constant, ground),
        torch.where(has, 0.0, names.offset),
        has.to(mean),
    )
    return torch.cat([direction @ asked.basis.T, torch.stack(behind, 1)], dim=1)


def row_logits(
    bank: Float[Tensor, "*s c k"],
    u: Float[Tensor, "b d"],
    squared: Float[Tensor, "b 1"],
    tail: Float[Tensor, "b 1"],
) -> Float[Tensor, "*s b c"]:
    """For images u = x − b with ‖u‖²_P and h."""
    rows = split_rows(bank)
    weight, constant, free, own = (part.unsqueeze(-2) for part in rows[1:])
    along = u @ rows.direction.transpose(-1, -2)
    return along * (1 + own * (tail - 1)) + tail * (constant - 0.5 * squared * weight) + free


def row_distances(
    bank: Float[Tensor, "c k"], u: Float[Tensor, "b d"], squared: Float[Tensor, "b 1"]
) -> Float[Tensor, "b c"]:
    """‖x − μ̂_c‖²_P / ι_c of classes with photographs, from rows at T = 1."""
    rows = split_rows(bank)
    width = rows.direction.shape[-1]
    # as the weight is 1/ι, this takes −½ d ln ι off the constant
    length = rows.constant - 0.5 * width * rows.weight.log()
    return rows.weight * squared - 2 * u @ rows.direction.T - 2 * length
