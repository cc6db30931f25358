"""A model's answers in use beside those that it was judged by at fit."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pbprompt.model.calibration import Calibration
from pbprompt.model.metrics.drift import lower, other_shares

UNFAMILIAR = 0.05  # familiarity at which an image is counted as unlike the classes
ACCURACY = 0.9  # whose threshold makes an image unsure


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

    Each p-value is exact (`metrics/drift.py`); with one error rate for all of them each has its share of it.
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
