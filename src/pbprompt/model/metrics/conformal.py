"""Sets of classes that hold the true one with a wanted probability: split conformal prediction.

    s_i = 1 − p(y_i | x_i)                          over n validation images, y_i the true class
    q   = the ⌈(n + 1)·coverage⌉-th smallest s_i    infinite where there are too few images for that rank
    set(x) = {c : 1 − p(c | x) ≤ q}

Where a new image is exchangeable with the validation images (none of them trained on), its true class is in
the set with a probability of at least `coverage`, however wrong the model is: its own s is equally likely to
take any rank among the n + 1. This holds on average over the images that q is of, so that one q for all would
be too small for hard images and too large for easy ones. Therefore q is that of images as hard as x
(Mondrian conformal prediction): the harder half by the top probability, the harder half of that, and so on,
while there are enough. Or there is a q for each class, of its own validation images: then it holds for the
images of every class; it takes n of each.

The score 1 − p(true class) gives the smallest sets on average of all scores with that guarantee when the
probabilities are right, and needs no random numbers, as adaptive sets do that add up the likelier classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbprompt.errors import InputError
from pbprompt.model.metrics.classification import Floats, numbers

ENOUGH = 3  # times as many images as q takes at least, before images of one difficulty have one of their own


@dataclass(frozen=True)
class ByDifficulty:
    """q of the hardest images first: `quantiles[i]` where the top probability is below `edges[i]`."""

    edges: tuple[float, ...]
    quantiles: tuple[float, ...]  # one more

    def __call__(self, top: ArrayLike) -> Floats:
        """q for images of these top probabilities."""
        return np.asarray(self.quantiles)[np.searchsorted(self.edges, np.asarray(top), side="right")]


def by_difficulty(confidence: ArrayLike, true_probabilities: ArrayLike, coverage: float) -> ByDifficulty:
    """From the top probability of each validation image, and that of its true class."""
    top, true = numbers(confidence, "confidence"), numbers(true_probabilities, "probabilities")
    edges: list[float] = []
    here, quantiles = np.ones(len(top), dtype=bool), []
    while (edge := float(np.median(top[here]))) > top.min():
        if (here & (top < edge)).sum() < ENOUGH * fewest_images(coverage):
            break
        quantiles.append(conformal_quantile(true[here & (top >= edge)], coverage))
        edges.append(edge)
        here &= top < edge
    quantiles.append(conformal_quantile(true[here], coverage))
    return ByDifficulty(tuple(edges[::-1]), tuple(quantiles[::-1]))


def conformal_quantile(true_probabilities: ArrayLike, coverage: float) -> float:
    """q, from the probability each validation image gives its true class."""
    scores = np.sort(1 - numbers(true_probabilities, "probabilities"))
    rank = math.ceil((len(scores) + 1) * _exact(coverage))
    return float(scores[rank - 1]) if rank <= len(scores) else math.inf


def class_quantiles(
    true_probabilities: ArrayLike, labels: Sequence[str], classes: Sequence[str], coverage: float
) -> tuple[float, ...]:
    """q of each class; infinite where it has too few validation images, so that it is in every set."""
    true, own = numbers(true_probabilities, "probabilities"), np.asarray(labels, dtype=object)
    return tuple(
        conformal_quantile(true[own == name], coverage) if (own == name).any() else math.inf
        for name in classes
    )


def fewest_images(coverage: float) -> int:
    """The least n for which q is finite: ⌈(n + 1)·coverage⌉ ≤ n."""
    wanted = _exact(coverage)
    return max(1, math.ceil(wanted / (1 - wanted)))


def prediction_sets(
    probabilities: ArrayLike, quantile: float | tuple[float, ...] | ByDifficulty
) -> NDArray[np.bool_]:
    """Which classes are in the set of each image [n, C]; `quantile`: one for all classes, one for each, or by
    how hard the image is.

    Where no class is likely enough the set is the likeliest class: an answer of nothing helps nobody, and a
    larger set covers no less.
    """
    rows = numbers(probabilities, "probabilities", 2)
    held = 1 - rows <= (quantile(rows.max(1))[:, None] if isinstance(quantile, ByDifficulty) else quantile)
    empty = ~held.any(1)
    held[empty, rows[empty].argmax(1)] = True
    return held


def _exact(coverage: float) -> Fraction:
    """The decimal number that was written: 0.07 · 100 is 7, where floats give 7.000000000000001."""
    if not 0 < coverage < 1:
        raise InputError(f"coverage is {coverage:g}: give a share between 0 and 1, such as 0.9")
    return Fraction(str(float(coverage)))
