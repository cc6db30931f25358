"""How often and how surely predictions are right, in fractions and nats; percentages are left to reports."""

import math

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.model.metrics.arrays import log_probabilities_and_labels
from pbprompt.model.metrics.confusion import confusion_matrix
from pbprompt.model.metrics.reliability import confidence_bins
from pbprompt.model.metrics.selective import area_under_risk_coverage

# log of the smallest normal float64, about −708: a true class given no probability at all costs this much,
# so that one such item cannot turn a whole record into infinity.
LOG_FLOOR = math.log(np.finfo(np.float64).tiny)


def summary(log_probabilities: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The standard set, from log-probabilities [n, C]: in float32 a probability below 1e-45 is already 0.

        accuracy, top5 = share of items whose label is the likeliest class, among the five likeliest (C > 5)
        macro_f1       = mean over classes of 2·TP / (2·TP + FP + FN)
        macro_recall   = mean over the classes that have images of TP / (TP + FN): each counts the same
        nll            = −(1/n) Σ log p(yᵢ), each of them no lower than `LOG_FLOOR`
        brier          = (1/n) Σᵢ Σ_c (p_ic − [c = yᵢ])²                         0 at best, 2 at worst
        ece, ece_adaptive, aurc                               `reliability.py`, `selective.py`

    The lowest class index wins a tie. The mean of F1 runs over the classes that occur among labels or
    predictions, as scikit-learn's default does: one that is only predicted counts as 0.
    """
    rows, truth = log_probabilities_and_labels(log_probabilities, labels)
    classes, predicted, at_truth = rows.shape[1], rows.argmax(1), (np.arange(len(rows)), truth)
    own, right = rows[at_truth], predicted == truth
    figures = {"accuracy": right.mean()}
    if classes > 5:
        ties_before = (rows == own[:, None]) & (np.arange(classes) < truth[:, None])
        figures["top5"] = (((rows > own[:, None]) | ties_before).sum(1) < 5).mean()
    matrix = confusion_matrix(truth, predicted, classes)
    occurrences = matrix.sum(0) + matrix.sum(1)
    seen, images = occurrences > 0, matrix.sum(1)
    probabilities = np.exp(rows)
    confidence = probabilities.max(1)
    probabilities[at_truth] -= 1  # what is left of each row are its misses
    figures |= {
        "macro_f1": (2 * np.diag(matrix)[seen] / occurrences[seen]).mean(),
        "macro_recall": (np.diag(matrix)[images > 0] / images[images > 0]).mean(),
        "nll": -np.maximum(own, LOG_FLOOR).mean(),
        "brier": np.einsum("nc,nc->n", probabilities, probabilities).mean(),
        "ece": confidence_bins(confidence, right).error,
        "ece_adaptive": confidence_bins(confidence, right, adaptive=True).error,
        # Log-probabilities still tell apart confidences that all round to 1.
        "aurc": area_under_risk_coverage(rows.max(1), right),
    }
    return {name: float(value) for name, value in figures.items()}


def harmonic_mean(base: float, new: float) -> float:
    """H = 2·B·N / (B + N) of base and new accuracy; 0 where both are 0."""
    if not (0 <= base < math.inf and 0 <= new < math.inf):
        raise ValueError(f"base and new accuracy must be finite and not negative, not {base} and {new}")
    return float(2 * base * new / (base + new)) if base + new > 0 else 0.0
