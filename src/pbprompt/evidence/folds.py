"""Which photographs are held out together, so that the others may say what they are."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pbprompt.evidence.series import series_folds

FOLDS = 5


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
