"""Answers in use beside those that a model was judged by at fit: two-sample tests at a stated error rate.

    D⁺ = max_t ( F_new(t) − F_fit(t) )       of familiarity, and of the top probability: whether it is lower
    χ² = Σ_c (n_c − n̂_c)² / (n_c + m_c)      of the likeliest classes: n̂_c = (n_c + m_c) n / (n + m)
    p  = (1 + #{orders by chance that are as extreme}) / (orders + 1)

| symbol   | meaning                                                       |
|----------|---------------------------------------------------------------|
| n, n_c   | new answers, those of class c                                 |
| m, m_c   | answers on images that were judged at fit, those of class c   |
| F(t)     | share of answers at t or below                                |

Kolmogorov and Smirnov's test of a model's outputs, corrected for their number by Bonferroni, found drift best
among simple ways (Rabanser, Günnemann and Lipton, 2019). Orders by chance make it exact (Phipson and Smyth,
2010): where images come as they did at fit, p ≤ α happens no more often than α, however few they are. It is
one-sided, since what was judged at fit was left out: the whole model knows new images a little better.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.model.calibration import Calibration
from pbprompt.model.metrics.classification import numbers

UNFAMILIAR = 0.05  # familiarity at which an image is counted as unlike the classes
ACCURACY = 0.9  # whose threshold makes an image unsure
ORDERS = 1_999
MOST = 5_000  # new answers that are compared, drawn by chance: those at fit, which are fewer, limit the power
AT_ONCE = 1 << 20  # places of orders by chance


class Answered(NamedTuple):
    """Images' likeliest classes, how likely these are, and how familiar they look (empty: cannot be told)."""

    labels: Sequence[str]
    confidence: Sequence[float]
    familiarity: Sequence[float] = ()


class Check(NamedTuple):
    """A share of images at fit and now, and how often chance alone would change them as much."""

    share: str
    at_fit: float
    now: float
    p_value: float


def at_fit(calibration: Calibration) -> Answered:
    """Of each series one."""
    one = calibration.single
    return Answered(one.predicted, one.confidence, one.familiarity)


def unsure_below(calibration: Calibration) -> float:
    """The threshold of `ACCURACY`, or of the most that can be promised."""
    return calibration.promised(ACCURACY).threshold


def compare(calibration: Calibration, now: Answered) -> list[Check]:
    """Whether new answers are less familiar, less sure, or of other classes than those at fit.

    Each p-value is exact; with one error rate for all of them each has its share of it.
    """
    before, sure, found = at_fit(calibration), unsure_below(calibration), []
    if before.familiarity and now.familiarity:
        unlike = [float(np.mean(np.asarray(one.familiarity) <= UNFAMILIAR)) for one in (before, now)]
        found.append(Check("unfamiliar", unlike[0], unlike[1], lower(now.familiarity, before.familiarity)))
    unsure = [float(np.mean(np.asarray(one.confidence) < sure)) for one in (before, now)]
    found.append(Check("unsure", unsure[0], unsure[1], lower(now.confidence, before.confidence)))
    if before.labels:
        shares = class_shares(before, now)
        most = max(shares, key=lambda name: abs(shares[name][1] - shares[name][0]))
        found.append(Check(f"class {most}", *shares[most], other_shares(now.labels, before.labels)))
    return found


def class_shares(before: Answered, now: Answered) -> dict[str, tuple[float, float]]:
    """Of each class, its share of the answers at fit and now."""
    old, new = Counter(before.labels), Counter(now.labels)
    return {name: (old[name] / old.total(), new[name] / new.total()) for name in sorted(old | new)}


def lower(new: ArrayLike, fit: ArrayLike, seed: int = 0) -> float:
    """p-value of "no lower than at fit".

    Of equals those at fit come first, which errs on the safe side; between a p-value of a new image and that
    of the very image at fit that it ranks behind, it is the true order.
    """
    chance = np.random.default_rng(seed)
    new, fit = numbers(new, "new values"), numbers(fit, "values at fit")
    new = chance.permutation(new)[:MOST]
    n, both = len(new), len(new) + len(fit)
    is_new = np.arange(both) < n
    own = is_new[np.lexsort((is_new, np.concatenate([new, fit])))][None]
    expected = n * np.arange(1, both + 1)  # D⁺ in whole numbers: nm D⁺ = max_i ((n + m) #new_i − n i)
    extreme = (both * own.cumsum(1) - expected).max()
    rows, found = max(1, AT_ONCE // both), 0
    for first in range(0, ORDERS, rows):
        some = chance.permuted(np.repeat(own, min(rows, ORDERS - first), axis=0), axis=1)
        found += int(((both * some.cumsum(1) - expected).max(1) >= extreme).sum())
    return (1 + found) / (ORDERS + 1)


def other_shares(new: Sequence[str], fit: Sequence[str], seed: int = 0) -> float:
    """p-value of "the same classes as often as at fit"."""
    chance = np.random.default_rng(seed)
    if len(new) > MOST:
        new = [new[place] for place in chance.choice(len(new), MOST, replace=False)]
    counts, both = Counter(new), Counter([*new, *fit])
    of_all = np.array([*both.values()])
    drawn = chance.multivariate_hypergeometric(of_all, len(new), size=ORDERS, method="marginals")
    expected = of_all * len(new) / of_all.sum()
    each = np.vstack([[counts[name] for name in both], drawn])
    own, *others = ((each - expected) ** 2 / of_all).sum(1)
    return (1 + sum(other >= own * (1 - 1e-9) for other in others)) / (ORDERS + 1)
