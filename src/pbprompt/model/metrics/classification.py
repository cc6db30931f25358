"""Right and wrong answers counted: what is taken for what, how each class fares, and whether confidence means
what it says. And the checks that every figure shares: one of wrong arrays would look like any other.

    precision_c = right_c / answered_c    of the images it calls c, the share that are
    recall_c    = right_c / images_c      of the images of c, the share it calls so
    F1_c        = 2·right_c / (images_c + answered_c)
    ECE         = Σ_b (n_b / n) · |accuracy_b − confidence_b|        over bins of confidence

A share of nothing is no number: precision is None where the class is never the answer, recall where no image
is of the class, F1 where neither is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Wide enough for rows normalised in half precision, far too narrow for logits taken for log-probabilities.
SUM_TOLERANCE = 1e-2


def numbers(values: ArrayLike, name: str, dimensions: int = 1) -> Floats:
    """Numbers that can be ordered, [items] or [items, classes]: infinities may be among them, NaN may not."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"no {name} given: there is nothing to measure")
    if array.ndim != dimensions:
        shape = "[items, classes]" if dimensions == 2 else "[items]"
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")
    if np.isnan(array).any():
        raise ValueError(f"there is NaN in {name}: the model diverged or an input was broken")
    return array


def flags(values: ArrayLike, name: str, n: int) -> Floats:
    """A vector of n zeros and ones (or booleans)."""
    vector = numbers(values, name)
    if len(vector) != n:
        raise ValueError(f"{name} must have one value for each of the {n} items, not {len(vector)}")
    if not np.isin(vector, (0.0, 1.0)).all():
        raise ValueError(f"{name} must be booleans or zeros and ones")
    return vector


def distributions(rows: ArrayLike, labels: ArrayLike, *, log: bool = False) -> tuple[Floats, Integers]:
    """Probabilities [n, C] (or their logarithms) that sum to one in each row, and labels [n] in 0…C−1."""
    name = "log-probabilities" if log else "probabilities"
    values, truth = numbers(rows, name, 2), np.asarray(labels)
    if np.isposinf(values).any():
        raise ValueError(f"there is +inf in {name}: the model overflowed; give finite values")
    n, classes = values.shape
    if truth.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one for each row of {name}, not {truth.shape}")
    if not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels must be integers (class indices), not {truth.dtype}")
    if truth.min() < 0 or truth.max() >= classes:
        wrong = truth[(truth < 0) | (truth >= classes)][0]
        raise ValueError(f"label {wrong} is out of range: {name} have classes 0 to {classes - 1}")
    if not log and values.min() < 0:
        raise ValueError("probabilities must not be negative; of log-probabilities, give the exponential")
    with np.errstate(over="ignore"):  # logits by mistake have an infinite sum
        sums = (np.exp(values) if log else values).sum(axis=1)
    far = int(np.abs(sums - 1).argmax())
    if abs(sums[far] - 1) > SUM_TOLERANCE:
        what = "exponentials of log-probabilities" if log else name
        raise ValueError(f"{what} must sum to 1 in every row, not {sums[far]:.6g} as in row {far}; normalise")
    return values, truth.astype(np.int64)


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
        ConfusedPair(true, answer, count, count / int(images[true]))
        for true, answer in np.argwhere(matrix).tolist()
        if true != answer and (count := int(matrix[true, answer]))
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

    def key(one: ClassFigures) -> tuple[float, ...]:
        return tuple(2.0 if share is None else share for share in (one.recall, one.precision))

    return sorted(figures, key=key)


@dataclass(frozen=True)
class ReliabilityBins:
    """Items grouped by confidence, as a reliability diagram draws them.

    Bin b holds the confidences in (edges[b], edges[b + 1]], the first one its lower edge too. Mean confidence
    and accuracy are NaN in an empty bin.
    """

    edges: Floats
    count: Integers
    confidence: Floats
    accuracy: Floats

    @property
    def error(self) -> float:
        """The expected calibration error, ECE."""
        full = self.count > 0
        return float(np.average(np.abs(self.accuracy - self.confidence)[full], weights=self.count[full]))


def confidence_bins(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 15, adaptive: bool = False
) -> ReliabilityBins:
    """Group items by the probability of their prediction: bins of equal width, or (adaptive) of equal mass.

    Equal mass means sizes that differ by one at most. Equal confidences always share a bin, though, so that
    the order of the items does not matter; many of them make one bin larger and others empty.
    """
    # Rounding may lift a probability a little above 1, outside the last bin.
    confidence = np.minimum(np.asarray(confidence, dtype=np.float64), 1.0)
    edges = np.linspace(0, 1, bins + 1)
    if adaptive:
        ordered, n = np.sort(confidence), len(confidence)
        # The inner edge k is the last confidence among the lowest k/bins of the items, in whole numbers: a
        # quantile in floating point could fall just short of the very value it stands for.
        last = np.maximum(np.arange(1, bins) * n // bins - 1, 0)
        edges = np.concatenate([ordered[:1], ordered[last], ordered[-1:]])
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(index, minlength=bins)

    def mean(values: ArrayLike) -> Floats:
        total = np.bincount(index, weights=np.asarray(values, dtype=np.float64), minlength=bins)
        return np.divide(total, count, out=np.full(bins, np.nan), where=count > 0)

    return ReliabilityBins(edges, count, mean(confidence), mean(correct))
