"""Cross-validation within a few labelled images: the same folds on every machine, for any counts.

The j-th image of a class (in the order given) is held out in fold j modulo the number of folds. A class with
one image keeps it for fitting always, so that every class with images can be told in every fold.
"""

from jaxtyping import Bool, Int
from torch import Tensor

FOLDS = 5


def held_out(labels: Int[Tensor, " n"], folds: int = FOLDS) -> list[Bool[Tensor, " n"]]:
    """Which images each fold holds out; no fold where no class has two images."""
    counts = labels.bincount()
    folds = min(folds, int(counts.max()))
    same = labels.unsqueeze(1) == labels
    place = same.tril(-1).sum(1) % folds
    several = counts[labels] > 1
    return [several & (place == fold) for fold in range(folds)] if folds > 1 else []
