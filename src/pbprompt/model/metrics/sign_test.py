"""Whether one of two models is better, by the images that only one of them is right about.

    p = min(1, 2 Σ_{i ≤ min(b, w)} C(b + w, i) / 2^{b + w})

b images are right now alone and w were right before alone; without a difference each is as likely either way.
"""

from math import comb


def sign_test(better: int, worse: int) -> float:
    """p: how often chance alone makes so large a difference."""
    count = better + worse
    return min(1.0, 2 * sum(comb(count, i) for i in range(min(better, worse) + 1)) / 2**count)
