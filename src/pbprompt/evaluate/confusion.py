"""What is taken for what: the matrix of true classes and answers, and the pairs confused most often."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.evaluate.arrays import Integers


@dataclass(frozen=True)
class ConfusedPair:
    """Images of class `true` that are taken for `taken_for` (indices), and their share of all of `true`."""

    true: int
    taken_for: int
    images: int
    share: float


def confusion_matrix(labels: ArrayLike, predicted: ArrayLike, classes: int) -> Integers:
    """M[t, p]: how many images of class t are called p; of shape [classes, classes]."""
    truth, said = np.asarray(labels, np.int64), np.asarray(predicted, np.int64)
    if truth.shape != said.shape or truth.ndim != 1:
        raise ValueError(
            f"labels and predictions must be two vectors of one length: {truth.shape}, {said.shape}"
        )
    for name, values in (("label", truth), ("prediction", said)):
        if len(values) and not 0 <= values.min() <= values.max() < classes:
            raise ValueError(f"a {name} is out of range: there are classes 0 to {classes - 1}")
    return np.bincount(classes * truth + said, minlength=classes * classes).reshape(classes, classes)


def most_confused(matrix: Integers, most: int | None = None) -> list[ConfusedPair]:
    """Pairs with the most images first; of equally many, those that are a larger share of their class."""
    images = matrix.sum(1)
    pairs = [
        ConfusedPair(true, said, count, count / int(images[true]))
        for true, said in np.argwhere(matrix).tolist()
        if true != said and (count := int(matrix[true, said]))
    ]
    return sorted(pairs, key=lambda pair: (-pair.images, -pair.share, pair.true, pair.taken_for))[:most]


def most_involved(matrix: Integers, most: int) -> list[int]:
    """The classes with the most errors made of them and with them, worst first: where a matrix is too large
    to show, these are the part of it that matters."""
    errors = matrix.sum(1) + matrix.sum(0) - 2 * np.diag(matrix)
    return np.argsort(-errors, kind="stable")[:most].tolist()


def csv_rows(matrix: Integers, classes: Sequence[str]) -> list[list[str | int]]:
    """The matrix as a table: a row per true class, a column per answer."""
    head: list[str | int] = ["true \\ answer", *classes]
    return [head, *([name, *row] for name, row in zip(classes, matrix.tolist(), strict=True))]
