"""What uncertainty is good for: telling new from known, and abstaining where a mistake is likely."""

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.evaluate.arrays import Floats, flags, numbers


def auroc(scores: ArrayLike, positives: ArrayLike) -> float:
    """The probability that a positive item scores higher than a negative one, ties counting half.

    By ranks: (Σ_{positives} rank − P(P+1)/2) / (P·N), tied scores sharing their mean rank. To measure the
    detection of new classes, `scores` is the entropy or the mutual information of each item, and `positives`
    says which items are of a new class.
    """
    values = numbers(scores, "scores")
    positive = flags(positives, "positives", len(values)) == 1
    p = int(positive.sum())
    n = len(values) - p
    if p == 0 or n == 0:
        raise ValueError(f"AUROC needs positives and negatives: there are {p} and {n}")
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(size) - (size - 1) / 2
    return float((mean_rank[group][positive].sum() - p * (p + 1) / 2) / (p * n))


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Coverage k/n and risk, the share of errors among the k most confident items, for k = 1…n.

    Items of equal confidence come in no order, so each counts as the mean of its group: the risk is then the
    expected one over random orders, whatever the order of the input.
    """
    values = numbers(confidence, "confidence")
    errors = 1 - flags(correct, "correct", len(values))
    _, group, size = np.unique(-values, return_inverse=True, return_counts=True)
    mean_error = np.bincount(group, weights=errors) / size
    accepted = np.arange(1, len(values) + 1)
    return accepted / len(values), np.cumsum(np.repeat(mean_error, size)) / accepted


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """AURC = (1/n) Σ_k risk_k: lower is better; the error rate itself where confidence says nothing."""
    _, risk = risk_coverage(confidence, correct)
    return float(risk.mean())
