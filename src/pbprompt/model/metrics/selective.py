"""What uncertainty is good for: telling new from known, and abstaining where a mistake is likely."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.model.metrics.classification import Floats, flags, numbers

TRIED = 64  # numbers of items, where to start
MOST_TIMES = 10  # as many items


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


def sure_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    accuracy: float,
    certainty: float = 0.9,
    weights: ArrayLike | None = None,
) -> float:
    """A confidence from which on items are right as often as `accuracy`, promised with a certainty.

        P( accuracy of what is accepted < wanted ) ≤ 1 − certainty         over draws of the judged items

    A threshold passes where so few errors among its n accepted items would be rarer than δ = 1 − certainty
    if the accuracy were no better than wanted: P(Bin(n, 1 − accuracy) ≤ errors) ≤ δ, which is Clopper and
    Pearson's bound. Thresholds are tried from `start`'s on, one after the other, until the first that fails:
    testing in an order that was fixed beforehand takes no correction for their number (fixed-sequence testing
    as in Learn then Test; Angelopoulos et al., 2021). Infinite where nothing can be promised.

    The order may rest on the confidences, since the test is of which answers are right. So it begins where
    the promise is likely to hold and a single sure mistake can be made up for: begun at the fewest items that
    could promise it, one mistake among them would refuse all. The empirical choice (the lowest threshold at
    which the judged items are right often enough) breaks its word about every other time: it is the luckiest
    of many thresholds.

    `weights`: how often items like each come, where these are not as frequent as those to come. Weighted
    items count as the fewer that tell as much, n = ê(1 − ê)/var ê of their weighted share of errors ê, and no
    more than (Σw)²/Σw² (Korn and Graubard, Survey Methodology, 1998).
    """
    values = numbers(confidence, "confidence")
    wrong = 1 - flags(correct, "correct", len(values))
    w = np.ones(len(values)) if weights is None else numbers(weights, "weights")
    levels, group = np.unique(-values, return_inverse=True)  # the surest first
    sums = (np.bincount(group, weights=each).cumsum() for each in (w, w * w, w * wrong, w * w * wrong))
    accepted, errors = _worth(*sums)
    first, lowest, passed = start(values, accuracy, certainty, w), math.inf, (math.inf, -1.0)
    for level, items, errs in zip(levels, accepted, errors, strict=True):
        if items < first:
            continue
        if items < passed[0] or errs > passed[1]:  # no more errors among more items pass as well
            if few_errors(items, errs, 1 - accuracy) > 1 - certainty:
                break
            passed = items, errs
        lowest = -float(level)
    return lowest


def _worth(w: Floats, squares: Floats, wrong: Floats, wrong_squares: Floats) -> tuple[Floats, Floats]:
    """Whole items that tell as much as weighted ones, no more, and errors among them, no fewer."""
    share = wrong / w
    spread = wrong_squares * (1 - 2 * share) + share**2 * squares  # Σ w² (e − ê)²
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(spread > 1e-12 * squares, share * (1 - share) * w**2 / spread, np.inf)
    items = np.minimum(worth, w**2 / squares)
    return np.floor(items + 1e-6), np.ceil(items * share - 1e-6)


def start(
    confidence: ArrayLike, accuracy: float, certainty: float = 0.9, weights: ArrayLike | None = None
) -> float:
    """Of how many items the first threshold is that `sure_threshold` tries; more than there are: none can be.

    Half of the most items that could be accepted if each were right as often as its confidence says (with
    half the risk), and no fewer than could promise it if all were right.
    """
    values = numbers(confidence, "confidence")
    order = np.argsort(-values, kind="stable")
    w = np.ones(len(values)) if weights is None else numbers(weights, "weights")[order]
    items = np.floor(w.cumsum() ** 2 / (w * w).cumsum() + 1e-6)
    errors = items * (w * (1 - values[order])).cumsum() / w.cumsum()
    fewest = fewest_right(accuracy, certainty)
    if fewest > items.max():
        return math.inf
    least = int(np.argmax(items >= fewest)) + 1
    tried = np.unique(np.geomspace(least, len(values), TRIED).round().astype(int)) - 1
    risk = (1 - certainty) / 2
    could = [items[at] for at in tried if few_errors(items[at], int(errors[at]), 1 - accuracy) <= risk]
    return max(fewest, could[-1] // 2) if could else fewest


def times_as_many(
    confidence: ArrayLike,
    correct: ArrayLike,
    accuracy: float,
    certainty: float = 0.9,
    weights: ArrayLike | None = None,
) -> int:
    """How many times the items it would take to promise an accuracy, were the others right as often as
    these; 0 where `MOST_TIMES` would not do."""
    w = np.ones(len(np.asarray(correct))) if weights is None else weights
    for times in range(1, MOST_TIMES + 1):
        more, so_right, weighed = (np.tile(each, times) for each in (confidence, correct, w))
        if math.isfinite(sure_threshold(more, so_right, accuracy, certainty, weighed)):
            return times
    return 0


def few_errors(items: int, errors: int, rate: float) -> float:
    """P(Bin(items, rate) ≤ errors)."""
    if errors >= items or rate <= 0 or rate >= 1:
        return float(errors >= items or rate <= 0)
    k = np.arange(int(errors) + 1)
    factorials = _log_factorials(1 << int(items).bit_length())
    ways = factorials[int(items)] - factorials[k] - factorials[int(items) - k]
    return float(np.exp(ways + k * math.log(rate) + (items - k) * math.log1p(-rate)).sum())


@lru_cache(maxsize=8)
def _log_factorials(most: int) -> Floats:
    return np.concatenate([[0.0], np.log(np.arange(1, most + 1)).cumsum()])


def fewest_right(accuracy: float, certainty: float = 0.9) -> float:
    """How many items, all of them right, promise an accuracy: the least n with accuracyⁿ ≤ 1 − certainty."""
    return math.ceil(math.log(1 - certainty) / math.log(accuracy)) if accuracy < 1 else math.inf
