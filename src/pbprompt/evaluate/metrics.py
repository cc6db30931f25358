"""How often and how surely predictions are right, in fractions and nats; percentages are left to reports.

`scores` may be probabilities, log-probabilities or logits [n, C]: only their order within a row matters, and
the lowest class index wins a tie. Where the values themselves matter, the argument's name says which.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.evaluate.arrays import (
    at_least,
    log_probabilities_and_labels,
    probabilities_and_labels,
    scores_and_labels,
)
from pbprompt.evaluate.reliability import expected_calibration_error
from pbprompt.evaluate.selective import area_under_risk_coverage

# log of the smallest normal float64, about −708: a true class given no probability at all costs this much,
# so that one such item cannot turn a whole record into infinity.
LOG_FLOOR = math.log(np.finfo(np.float64).tiny)


def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """The share of items whose highest score is at their label."""
    return top_k_accuracy(scores, labels, k=1)


def top_k_accuracy(scores: ArrayLike, labels: ArrayLike, k: int = 5) -> float:
    """The share of items whose label is among the k highest scores, 1 ≤ k ≤ C."""
    rows, truth = scores_and_labels(scores, labels)
    classes = rows.shape[1]
    at_least(1, k, "k")
    if k > classes:
        raise ValueError(f"k must not pass the number of classes: top {k} of {classes}")
    own = np.take_along_axis(rows, truth[:, None], axis=1)
    ties_before = (rows == own) & (np.arange(classes) < truth[:, None])
    rank = (rows > own).sum(axis=1) + ties_before.sum(axis=1)
    return float((rank < k).mean())


def harmonic_mean(base: float, new: float) -> float:
    """H = 2·B·N / (B + N) of base and new accuracy; 0 where both are 0."""
    if not (0 <= base < math.inf and 0 <= new < math.inf):
        raise ValueError(f"base and new accuracy must be finite and not negative, not {base} and {new}")
    return float(2 * base * new / (base + new)) if base + new > 0 else 0.0


def macro_f1(scores: ArrayLike, labels: ArrayLike) -> float:
    """The plain mean over classes of F1 = 2·TP / (2·TP + FP + FN).

    The mean runs over the classes that occur among labels or predictions, as scikit-learn's default does. A
    class that is only predicted counts as 0; one neither present nor predicted has no F1 and is left out.
    """
    rows, truth = scores_and_labels(scores, labels)
    classes, predicted = rows.shape[1], rows.argmax(axis=1)
    hits = np.bincount(truth[predicted == truth], minlength=classes)
    # 2·TP + FP + FN is the number of items of the class plus the number of predictions of it.
    occurrences = np.bincount(truth, minlength=classes) + np.bincount(predicted, minlength=classes)
    seen = occurrences > 0
    return float((2 * hits[seen] / occurrences[seen]).mean())


def negative_log_likelihood(log_probabilities: ArrayLike, labels: ArrayLike) -> float:
    """−(1/n) Σ log p(yᵢ), in nats, from log-probabilities, each of them no lower than `LOG_FLOOR`.

    Log-probabilities rather than probabilities: in float32 a probability below 1e-45 is already 0.
    """
    rows, truth = log_probabilities_and_labels(log_probabilities, labels)
    own = rows[np.arange(len(truth)), truth]
    return float(-np.maximum(own, LOG_FLOOR).mean())


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """(1/n) Σᵢ Σ_c (p_ic − [c = yᵢ])²: 0 at best, 2 at worst (the sum over all classes, not its half)."""
    rows, truth = probabilities_and_labels(probabilities, labels)
    misses = rows.copy()
    misses[np.arange(len(truth)), truth] -= 1
    return float(np.einsum("nc,nc->n", misses, misses).mean())


def summary(log_probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> dict[str, float]:
    """The standard set, from log-probabilities: accuracy, top5 (where C > 5), macro_f1, nll, brier, ece,
    ece_adaptive (both with `bins` bins) and aurc (items ordered by the probability of their prediction).
    """
    rows, truth = log_probabilities_and_labels(log_probabilities, labels)
    probabilities = np.exp(rows)
    top5 = {"top5": top_k_accuracy(rows, truth, k=5)} if rows.shape[1] > 5 else {}
    return {
        "accuracy": accuracy(rows, truth),
        **top5,
        "macro_f1": macro_f1(rows, truth),
        "nll": negative_log_likelihood(rows, truth),
        "brier": brier(probabilities, truth),
        "ece": expected_calibration_error(probabilities, truth, bins=bins),
        "ece_adaptive": expected_calibration_error(probabilities, truth, bins=bins, adaptive=True),
        # Log-probabilities still tell apart confidences that all round to 1.
        "aurc": area_under_risk_coverage(rows.max(axis=1), rows.argmax(axis=1) == truth),
    }
