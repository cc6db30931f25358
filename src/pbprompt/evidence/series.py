"""Series among photographs, found by their features: twins of one thing, place or moment.

    s_ij = 1 − ‖u_i − u_j‖² / 2           of two of one class: 1 of equal ones, 0 of any
    s'_ij = 1 − ‖r_i − r_j‖² / 2          of two of different classes, their classes taken off

| symbol | meaning                                                                                        |
|--------|------------------------------------------------------------------------------------------------|
| u_i    | features, whitened by the covariance within classes (shrunk as `evidence.py` has it), /√m_c   |
| r_i    | u_i less the mean of its class, times √(n/(n − 1)), since that mean has the photograph in it    |
| m_c    | mean of ‖r‖² of the class, shrunk by 4 photographs of the mean of all: some are narrow           |

Photographs of different classes are of different series, so that they tell how alike two can be by accident.
Two of one class are twins from the least t on, from which photographs have one of another class so alike at
most `chance` times as often as one of their own:

    #{i: max_j s'_ij > t} + 1 ≤ chance · #{i: max_j s_ij > t}

Where no t does there are none. Twins of twins are of one series, unless that were the whole class, of which
nothing could be left out then. What is held out together is dealt here too.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHANCE = 0.2  # the largest that costs sets without series next to nothing (benchmarks/series.py)
EVEN = 1.0  # chance does as much as twins do
# of photographs, tried for t
SHARES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0)
FEWEST = 50  # photographs; fewer tell nothing of accidents
PRIOR = 4.0  # photographs, in m_c
ROWS = 1024  # compared with all at a time


class Series(NamedTuple):
    """What is found among n photographs."""

    of: Int[Tensor, " n"]  # the series of each, by the row of its first one
    alike: int  # photographs that have one of their class as alike as twins are if `chance` is `EVEN`


def find_series(images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], chance: float = CHANCE) -> Series:
    """The series of photographs, by features of length 1."""
    alone = torch.arange(len(labels), device=labels.device)
    if len(labels) < FEWEST or int(labels.bincount().max()) < 2:
        return Series(alone, 0)
    own, other, (rows, alike) = _neighbours(*whitened(images, labels), labels)
    even, least = threshold(own, other, EVEN), threshold(own, other, chance)
    perhaps = 0 if even is None else int((own > even).sum())
    if least is None:
        return Series(alone, perhaps)
    twins = alike > least
    return Series(joined(labels, rows[twins], alike[twins]), perhaps)


def whitened(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """u and r."""
    x, counts = images.double(), labels.bincount().double()
    sums = torch.zeros(len(counts), x.shape[1]).to(x).index_add_(0, labels, x)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    spread, several = x - means[labels], counts[labels] > 1
    freedom, width = int(several.sum()) - int((counts > 1).sum()), x.shape[1]
    variance = spread.square().sum() / (width * max(freedom, 1))
    covariance = spread.T @ spread + width * variance.clamp(min=1e-12) * torch.eye(width).to(x)
    root = torch.linalg.cholesky(torch.linalg.inv(covariance / (freedom + width)))
    grown = (counts / (counts - 1).clamp(min=1)).sqrt()[labels].unsqueeze(1)
    residual = grown * spread @ root
    length = residual.square().sum(1) * several
    total = torch.zeros_like(counts).index_add_(0, labels, length)
    usual = float(length.sum() / several.sum())
    size = (total + PRIOR * usual) / (counts * (counts > 1) + PRIOR)
    scale = size.clamp(min=1e-12).rsqrt()[labels].unsqueeze(1)
    return scale * (x @ root), scale * residual


def _neighbours(
    white: Float[Tensor, "n d"], residual: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """How alike the nearest of each photograph's class is, and of the others; all pairs of one class."""
    own, other, pairs, every = [], [], [], []
    places = torch.arange(len(labels)).to(labels)
    for rows in places.split(ROWS):
        same = labels[rows].unsqueeze(1) == labels
        alike = 1 - torch.cdist(white[rows], white).square() / 2
        later = same & (places > rows.unsqueeze(1))
        own.append(alike.masked_fill(~same | (places == rows.unsqueeze(1)), -torch.inf).amax(1))
        apart = 1 - torch.cdist(residual[rows], residual).square() / 2
        other.append(apart.masked_fill(same, -torch.inf).amax(1))
        first, second = later.nonzero().unbind(1)
        pairs.append(torch.stack([rows[first], second], 1))
        every.append(alike[first, second])
    return torch.cat(own), torch.cat(other), (torch.cat(pairs), torch.cat(every))


def threshold(own: Float[Tensor, " n"], other: Float[Tensor, " n"], chance: float) -> float | None:
    """t; None where there are no twins, and of a single class, which tells nothing of accidents."""
    if not other.isfinite().all():
        return None
    for tried in map(float, other.quantile(other.new_tensor(SHARES))):
        if int((other > tried).sum()) + 1 <= chance * int((own > tried).sum()):
            return tried
    return None


def joined(
    labels: Int[Tensor, " n"], pairs: Int[Tensor, "p 2"], alike: Float[Tensor, " p"]
) -> Int[Tensor, " n"]:
    """Twins joined, the most alike first, while a class is left with two series."""
    head, left = list(range(len(labels))), labels.bincount().tolist()

    def top(row: int) -> int:
        while head[row] != row:
            head[row] = head[head[row]]
            row = head[row]
        return row

    own = labels.tolist()
    for first, second in pairs[alike.argsort(descending=True, stable=True)].tolist():
        low, high = sorted((top(first), top(second)))
        if low != high and left[own[low]] > 2:
            head[high] = low
            left[own[low]] -= 1
    return torch.tensor([top(row) for row in range(len(head))]).to(labels)


def series_folds(labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], most: int) -> list[Int[Tensor, " m"]]:
    """Rows of each fold: whole series, those of a class spread evenly, large ones first.

    A class of a single series is in none, since nothing would be left of it; one of fewer series than folds
    is in as many as it has.
    """
    sizes = groups.bincount(minlength=int(groups.max()) + 1).tolist()
    folds = labels.new_full(labels.shape, -1)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        series = groups[rows].unique().tolist()
        if len(series) < 2:
            continue
        filled = [0] * min(most, len(series))
        for one in sorted(series, key=lambda group: (-sizes[group], group)):
            least = filled.index(min(filled))
            filled[least] += sizes[one]
            folds[rows[groups[rows] == one]] = least
    return [rows for fold in range(most) if len(rows := (folds == fold).nonzero().squeeze(1))]


FOLDS = 5  # of a cross-validation


def places_in_class(labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Which of its class each image is, from 0, in the order given."""
    order, sizes = labels.argsort(stable=True), labels.bincount()
    places = torch.empty_like(labels)
    places[order] = torch.arange(len(labels)).to(labels) - (sizes.cumsum(0) - sizes)[labels[order]]
    return places


def held_out(labels: Int[Tensor, " n"], groups: Int[Tensor, " n"] | None = None) -> list[Bool[Tensor, " n"]]:
    """Which training images each fold of a cross-validation holds out; no fold where no class has two images.

    The j-th image of a class, in the order given, is held out in fold j modulo the number of folds: the same
    on every machine. A class with one image keeps it, so that every class can be told in every fold. Series
    (`groups`) are held out whole.
    """
    if groups is not None:
        held = torch.zeros(FOLDS, len(labels), dtype=torch.bool)
        found = series_folds(labels, groups, FOLDS)
        for fold, rows in enumerate(found):
            held[fold, rows] = True
        return list(held[: len(found)])
    counts = labels.bincount()
    folds = min(FOLDS, int(counts.max()))
    place, several = places_in_class(labels) % folds, counts[labels] > 1
    return [several & (place == fold) for fold in range(folds)] if folds > 1 else []
