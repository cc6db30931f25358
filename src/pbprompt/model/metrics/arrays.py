"""The checks every figure shares: arrays of the right shape, without NaN, and labels within range.

A figure computed from wrong arrays looks like any other figure, so each of these raises ValueError instead.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Wide enough for rows normalised in half precision, far too narrow for logits taken for log-probabilities.
_SUM_TOLERANCE = 1e-2


def _scores_and_labels(scores: ArrayLike, labels: ArrayLike, name: str) -> tuple[Floats, Integers]:
    """Scores [n, C], higher for likelier classes (−∞ is a score), and labels [n] in 0…C−1."""
    rows = _plain(scores, name, dimensions=2)
    if np.isposinf(rows).any():
        raise ValueError(f"there is +inf in {name}: the model overflowed; give finite values")
    n, classes = rows.shape
    given = np.asarray(labels)
    if given.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one for each row of {name}, not {given.shape}")
    if not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"labels must be integers (class indices), not {given.dtype}")
    if given.min() < 0 or given.max() >= classes:
        wrong = given[(given < 0) | (given >= classes)][0]
        raise ValueError(f"label {wrong} is out of range: {name} have classes 0 to {classes - 1}")
    return rows, given.astype(np.int64)


def probabilities_and_labels(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Integers]:
    """Probabilities [n, C] whose rows sum to one, and their labels [n]."""
    rows, truth = _scores_and_labels(probabilities, labels, "probabilities")
    if rows.min() < 0:
        raise ValueError("probabilities must not be negative; of log-probabilities, give the exponential")
    _check_sums(rows, "probabilities")
    return rows, truth


def log_probabilities_and_labels(log_probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Integers]:
    """Log-probabilities [n, C] whose exponentials sum to one in each row, and their labels [n]."""
    rows, truth = _scores_and_labels(log_probabilities, labels, "log-probabilities")
    with np.errstate(over="ignore"):  # logits by mistake: an infinite sum is told below
        _check_sums(np.exp(rows), "exponentials of log-probabilities")
    return rows, truth


def scores(values: ArrayLike, name: str) -> Floats:
    """A number of each class for each image, [n, C]."""
    return _plain(values, name, dimensions=2)


def numbers(values: ArrayLike, name: str) -> Floats:
    """A vector of numbers that can be ordered: infinities may stand in it, NaN may not."""
    return _plain(values, name, dimensions=1)


def flags(values: ArrayLike, name: str, n: int) -> Floats:
    """A vector of n zeros and ones (or booleans)."""
    vector = numbers(values, name)
    if len(vector) != n:
        raise ValueError(f"{name} must have one value for each of the {n} items, not {len(vector)}")
    if not np.isin(vector, (0.0, 1.0)).all():
        raise ValueError(f"{name} must be booleans or zeros and ones")
    return vector


def _plain(values: ArrayLike, name: str, dimensions: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"no {name} given: there is nothing to measure")
    if array.ndim != dimensions:
        shape = "[items, classes]" if dimensions == 2 else "[items]"
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")
    if np.isnan(array).any():
        raise ValueError(f"there is NaN in {name}: the model diverged or an input was broken")
    return array


def _check_sums(rows: Floats, name: str) -> None:
    sums = rows.sum(axis=1)
    far = int(np.abs(sums - 1).argmax())
    if abs(sums[far] - 1) > _SUM_TOLERANCE:
        raise ValueError(f"{name} must sum to 1 in every row, not {sums[far]:.6g} as in row {far}; normalise")
