"""What is taken for what: the matrix of true classes and answers, how each class fares by it, and the pairs
confused most often.

    precision_c = right_c / answered_c    of the images it calls c, the share that are
    recall_c    = right_c / images_c      of the images of c, the share it calls so
    F1_c        = 2·right_c / (images_c + answered_c)

A share of nothing is no number: precision is None where the class is never the answer, recall where no image
is of the class, F1 where neither is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pbprompt.model.metrics.arrays import Integers


@dataclass(frozen=True)
class ConfusedPair:
    """Images of class `true` that are taken for `taken_for` (indices), and their share of all of `true`."""

    true: int
    taken_for: int
    images: int
    share: float


def confusion_matrix(labels: Integers, predicted: Integers, classes: int) -> Integers:
    """M[t, p]: how many images of class t are called p; of shape [classes, classes]."""
    return np.bincount(classes * labels + predicted, minlength=classes * classes).reshape(classes, classes)


def most_confused(matrix: Integers) -> list[ConfusedPair]:
    """Pairs with the most images first; of equally many, those that are a larger share of their class."""
    images = matrix.sum(1)
    pairs = [
        ConfusedPair(true, said, count, count / int(images[true]))
        for true, said in np.argwhere(matrix).tolist()
        if true != said and (count := int(matrix[true, said]))
    ]
    return sorted(pairs, key=lambda pair: (-pair.images, -pair.share, pair.true, pair.taken_for))


def most_involved(matrix: Integers, most: int) -> list[int]:
    """The classes with the most errors made of them and with them, worst first: where a matrix is too large
    to show, these are the part of it that matters."""
    errors = matrix.sum(1) + matrix.sum(0) - 2 * np.diag(matrix)
    return np.argsort(-errors, kind="stable")[:most].tolist()


def csv_rows(matrix: Integers, classes: Sequence[str]) -> list[list[str | int]]:
    """The matrix as a table: a row per true class, a column per answer."""
    head: list[str | int] = ["true \\ answer", *classes]
    return [head, *([name, *row] for name, row in zip(classes, matrix.tolist(), strict=True))]


@dataclass(frozen=True)
class ClassFigures:
    """One class: images of it, answers that name it, and those that are right."""

    name: str
    images: int
    answered: int
    right: int

    @property
    def precision(self) -> float | None:
        return self.right / self.answered if self.answered else None

    @property
    def recall(self) -> float | None:
        return self.right / self.images if self.images else None

    @property
    def f1(self) -> float | None:
        both = self.images + self.answered
        return 2 * self.right / both if both else None

    def to_dict(self) -> dict[str, str | int | float | None]:
        figures = ("images", "answered", "right", "precision", "recall", "f1")
        return {"class": self.name, **{name: getattr(self, name) for name in figures}}


def per_class(matrix: Integers, classes: Sequence[str]) -> list[ClassFigures]:
    """The figures of every class, in order, from a confusion matrix: rows are the truth."""
    counts = zip(matrix.sum(1).tolist(), matrix.sum(0).tolist(), np.diag(matrix).tolist(), strict=True)
    return [ClassFigures(name, *three) for name, three in zip(classes, counts, strict=True)]


def worst_first(figures: Sequence[ClassFigures]) -> list[ClassFigures]:
    """By recall, then precision, lowest first; classes without images last."""

    def key(one: ClassFigures) -> tuple[float, float]:
        recall = 2.0 if one.recall is None else one.recall
        return recall, 2.0 if one.precision is None else one.precision

    return sorted(figures, key=key)
