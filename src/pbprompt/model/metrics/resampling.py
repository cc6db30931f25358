"""How sure a mean over test images and draws is: both are drawn again, with replacement, many times.

    M_r = Σ_s v_rs · m(w_r; what seed s said)

w_r counts how often resample r has each image, v_r the share it gives to each seed, and m is a metric of
images with weights. Methods tested on the same images after the same draws take the same w and v: then the
difference of their M is paired, and its quantiles are an interval of that difference.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbprompt.model.metrics.arrays import Floats

RESAMPLES = 2000

Counts = NDArray[np.float32]


class PairedDifference(NamedTuple):
    """The accuracy of A less that of B, its 95 % interval, and the probability that A is better."""

    difference: float
    interval: tuple[float, float]
    probability: float


def paired_difference(
    correct_a: ArrayLike, correct_b: ArrayLike, resamples: int = RESAMPLES
) -> PairedDifference:
    """Of which images [s, n] A and B are right about, each after the same s draws.

    With one draw, images alone are resampled. The probability is the share of resamples in which A is ahead,
    ties counting half.
    """
    gaps = np.asarray(correct_a, dtype=np.float64) - np.asarray(correct_b, dtype=np.float64)
    return _summary(float(gaps.mean()), resampled_accuracy(gaps, resamples))


def paired_harmonic_difference(
    correct_a: tuple[ArrayLike, ArrayLike], correct_b: tuple[ArrayLike, ArrayLike], resamples: int = RESAMPLES
) -> PairedDifference:
    """H of A less that of B, from (base, new) of each: which images [s, n] it is right about.

    H = 2·b·n / (b + n) of the mean accuracies over seeds, in every resample: the images of base and of new
    are drawn apart, the seeds together.
    """

    def harmonic(base: Floats, new: Floats) -> Floats:
        return 2 * base * new / np.maximum(base + new, np.finfo(np.float64).tiny)

    drawn, means = [], []
    for halves in (correct_a, correct_b):
        some = [np.asarray(half, dtype=np.float64) for half in halves]
        parts = [resampled_accuracy(half, resamples, seed=2 * place) for place, half in enumerate(some)]
        drawn.append(harmonic(*parts))
        means.append(harmonic(*(half.mean(keepdims=True) for half in some)).item())
    return _summary(means[0] - means[1], drawn[0] - drawn[1])


def resampled_accuracy(correct: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """The mean over seeds and images of what is [s, n], in every resample; the seeds' shares are always the
    same."""
    values = np.asarray(correct, dtype=np.float64)
    by_seed = resampled_mean(values.T, image_counts(values.shape[1], resamples, seed))
    return (seed_shares(len(values), resamples, seed=1) * by_seed).sum(1)


def _summary(difference: float, drawn: Floats) -> PairedDifference:
    drawn = drawn.round(12)  # what cancels is a tie
    ahead = (drawn > 0).mean() + (drawn == 0).mean() / 2
    return PairedDifference(difference, interval(drawn), float(ahead))


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
