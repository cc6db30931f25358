"""How sure a mean over test images and draws is: both are drawn again, with replacement, many times.

    M_r = Σ_s v_rs · m(w_r; what seed s said)

w_r counts how often resample r has each image, v_r the share it gives to each seed, and m is a metric of
images with weights. Methods tested on the same images after the same draws take the same w and v: then the
difference of their M is paired, and its quantiles are an interval of that difference. Of two models on one
test set the sign test says as much by the b and w images that only the one or the other is right about:

    p = min(1, 2 Σ_{i ≤ min(b, w)} C(b + w, i) / 2^{b + w})       each is as likely either way by chance
"""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbprompt.model.metrics.classification import Floats

RESAMPLES = 2000

Counts = NDArray[np.float32]


class PairedDifference(NamedTuple):
    """The accuracy of A less that of B, its 95 % interval, and the probability that A is better."""

    difference: float
    interval: tuple[float, float]
    probability: float


def paired_average_difference(
    correct_a: Sequence[Sequence[ArrayLike]],
    correct_b: Sequence[Sequence[ArrayLike]],
    draws: Sequence[int] | None = None,
    resamples: int = RESAMPLES,
) -> PairedDifference:
    """How far A is ahead of B, over test sets that count as much or in H, by what each is right about.

    `correct[half][set]` is [s, n], after the same s draws for both; of one draw, images alone are resampled.
    The probability is the share of resamples in which A is ahead, ties counting half.

    M = 1/D·Σ_d M_d,  with two halves H = 2·M_base·M_new / (M_base + M_new),  in every resample

    Images are drawn apart for every set and half, seeds for every set; sets of equal `draws` were tuned on
    the same draws, and have them together.
    """
    sides = [(_mean(side), np.zeros((len(side), resamples))) for side in (correct_a, correct_b)]
    for half, places in enumerate(zip(correct_a, correct_b, strict=True)):
        for place, pair in enumerate(zip(*places, strict=True)):
            both = [np.asarray(correct, dtype=np.float64) for correct in pair]
            seeds, images = both[0].shape
            counts = image_counts(images, resamples, seed=4 * place + 2 * half)
            shares = seed_shares(seeds, resamples, seed=2 * (draws[place] if draws else place) + 1)
            for (_, drawn), correct in zip(sides, both, strict=True):
                drawn[half] += (shares * resampled_mean(correct.T, counts)).sum(1) / len(places[0])
    (mean_a, drawn_a), (mean_b, drawn_b) = sides
    drawn = (_combined(drawn_a) - _combined(drawn_b)).round(12)  # what cancels is a tie
    ahead = (drawn > 0).mean() + (drawn == 0).mean() / 2
    return PairedDifference((_combined(mean_a) - _combined(mean_b)).item(), interval(drawn), float(ahead))


def _mean(halves: Sequence[Sequence[ArrayLike]]) -> Floats:
    """[halves, 1]"""
    means = [[np.asarray(correct, dtype=np.float64).mean() for correct in places] for places in halves]
    return np.array([[np.mean(some)] for some in means])


def _combined(halves: Floats) -> Floats:
    """Of the one half, itself; of two, H: [halves, r] -> [r]."""
    if len(halves) == 1:
        return halves[0]
    base, new = halves
    return 2 * base * new / np.maximum(base + new, np.finfo(np.float64).tiny)


def image_counts(images: int, resamples: int = RESAMPLES, seed: int = 0) -> Counts:
    """w [r, n]: how often each of n images is among n drawn with replacement."""
    generator, counts = np.random.default_rng(seed), np.empty((resamples, images), dtype=np.float32)
    for row in counts:
        row[:] = np.bincount(generator.integers(images, size=images), minlength=images)
    return counts


def seed_shares(seeds: int, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """v [r, s], rows of sum 1: the shares of s seeds among s drawn with replacement.

    Resampling few seeds understates their variance by (s − 1)/s, so the shares are spread by √(s/(s − 1)).
    """
    if seeds == 1:
        return np.ones((resamples, 1))
    shares = image_counts(seeds, resamples, seed).astype(np.float64) / seeds
    return 1 / seeds + (shares - 1 / seeds) * np.sqrt(seeds / (seeds - 1))


def resampled_mean(values: ArrayLike, counts: Counts) -> Floats:
    """The mean of the images' values [n] (or [n, …]) in every resample, [r] (or [r, …])."""
    return (counts @ np.asarray(values, dtype=np.float32)).astype(np.float64) / counts.shape[1]


def interval(values: ArrayLike) -> tuple[float, float]:
    """The middle 95 % of the resamples."""
    low, high = np.nanquantile(np.asarray(values), [0.025, 0.975])
    return float(low), float(high)


def sign_test(better: int, worse: int) -> float:
    """p: how often chance alone makes so large a difference."""
    count = better + worse
    return min(1.0, 2 * sum(comb(count, i) for i in range(min(better, worse) + 1)) / 2**count)
