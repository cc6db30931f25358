"""What the model says of left-out photographs, as tables of photographs by classes, made some rows at a time.

`leave_one_out.py` holds some twenty such tables at once. Of these, only what the choice of κ, T and the rest
looks at is kept for all rows, so that 21,000 classes need no more memory than a thousand do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import KAPPA, Frame, inflation, log_density
from pbprompt.core.leave_one_out import leave_one_out
from pbprompt.core.look_alikes import Alike

CELLS = 1 << 19  # of a table that is made at once
IN_CACHE = 1 << 16  # of one that is looked at again and again


class Tables(NamedTuple):
    """Of n photographs, each judged by the model without it, over the k classes with photographs."""

    densities: Float[Tensor, "j n k"]
    """L_c⁻ⁱ(x_i), for each κ"""
    nearest: Float[Tensor, " n"]
    """squared distance to the nearest class, at the usual κ"""
    several: Bool[Tensor, " n"]
    """whether the photograph's class has others left"""
    remaining: Float[Tensor, " n"]
    """how many"""
    own_background: Float[Tensor, " n"]
    own_cosines: Float[Tensor, "n k"]
    background: Float[Tensor, " n"]
    cosines: Float[Tensor, "n k"]
    """these four as in `LeftOut`"""


def left_out_tables(
    frame: Frame,
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    alike: Alike,
    kappas: Sequence[float],
) -> Tables:
    """For photographs in the eigenbasis, and what leaves with each."""
    known, n, k = frame.known, len(images), frame.seen
    densities = images.new_empty(len(kappas), n, k)
    vectors, tables = [], (images.new_empty(n, k), images.new_empty(n, k))
    for rows in row_blocks(n, len(frame.counts), CELLS):
        some = torch.arange(n, device=labels.device)[rows]
        left = leave_one_out(frame, images[rows], labels[rows], alike.at(some))
        near = (left.distances(KAPPA) / inflation(left.counts, KAPPA))[:, known].amin(1)
        for place, kappa in enumerate(kappas):
            table = log_density(left.distances(kappa), left.counts, kappa, frame.width)
            densities[place, rows] = table[:, known]
        tables[0][rows], tables[1][rows] = left.own_cosines[:, known], left.cosines[:, known]
        remaining = left.counts.gather(1, labels[rows].unsqueeze(1)).squeeze(1)
        vectors.append((near, left.several, remaining, left.own_background, left.background))
    near, several, remaining, own, background = (torch.cat(parts) for parts in zip(*vectors, strict=True))
    return Tables(densities, near, several, remaining, own, tables[0], background, tables[1])


def row_blocks(rows: int, columns: int, cells: int) -> list[slice]:
    """Slices of a table's rows that hold so many cells, and at least one row."""
    size = max(1, cells // max(1, columns))
    return [slice(at, at + size) for at in range(0, rows, size)]


def own_log_probability(
    logits: Float[Tensor, "n k"], column: Int[Tensor, " n"], factor: float = 1.0
) -> Float[Tensor, " n"]:
    """log softmax of a multiple of the logits, at each row's own column."""
    return torch.cat(
        [
            (factor * logits[rows]).log_softmax(1).gather(1, column[rows].unsqueeze(1)).squeeze(1)
            for rows in row_blocks(len(logits), logits.shape[1], IN_CACHE)
        ]
        or [logits.new_empty(0)]
    )


def logsumexp_of(logits: Float[Tensor, "n k"], columns: Int[Tensor, " m"]) -> Float[Tensor, " n"]:
    """ln Σ_c exp over some columns of each row."""
    parts = [
        logits[rows][:, columns].logsumexp(1) for rows in row_blocks(len(logits), logits.shape[1], IN_CACHE)
    ]
    return torch.cat(parts or [logits.new_empty(0)])
