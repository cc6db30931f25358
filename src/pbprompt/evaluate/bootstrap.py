"""Whether one model really beats another on the same items."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.evaluate.arrays import fractions


class PairedBootstrap(NamedTuple):
    """The accuracy of A minus that of B, its 95 % interval, and the probability that A is better."""

    difference: float
    interval: tuple[float, float]
    probability: float


def paired_bootstrap(
    correct_a: ArrayLike, correct_b: ArrayLike, resamples: int = 10_000, seed: int = 0
) -> PairedBootstrap:
    """Resample the items, the same ones for A and for B, and see how the difference in accuracy varies.

    `correct_a[i]` says whether A is right about item i; it may be a fraction, such as the share of seeds with
    which A is right. The probability is the share of resamples in which A is ahead, ties counting half.
    """
    a = fractions(correct_a, "correct_a")
    b = fractions(correct_b, "correct_b", len(a))
    # A resample's mean depends only on how often each distinct difference is drawn (−1, 0 and 1 for plain
    # hits), and those counts are multinomial: no need to draw n items for every resample.
    values, counts = np.unique(a - b, return_counts=True)
    generator, n = np.random.default_rng(seed), len(a)
    draws = [generator.multinomial(n, counts / n) @ values / n for _ in range(resamples)]
    differences = np.array(draws).round(12)  # thirds that cancel must be a tie, not 1e-17
    low, high = np.quantile(differences, [0.025, 0.975])
    ahead = (differences > 0).mean() + (differences == 0).mean() / 2
    return PairedBootstrap(float((a - b).mean()), (float(low), float(high)), float(ahead))
