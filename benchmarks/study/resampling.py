"""How sure a mean over test images and draws is: both are drawn again, with replacement, many times.

    M_r = Σ_s v_rs · m(w_r; what seed s said)

w_r counts how often resample r has each image, v_r the share it gives to each seed, and m is a metric of
images with weights. Methods tested on the same images after the same draws take the same w and v: then the
difference of their M is paired, and its quantiles are an interval of that difference. Statistics of several
datasets, such as an average or H, are computed resample by resample.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbprompt.evaluate.arrays import Floats

RESAMPLES = 2000

Counts = NDArray[np.float32]


def image_counts(images: int, resamples: int = RESAMPLES, seed: int = 0) -> Counts:
    """w [r, n]: how often each of n images is among n drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(images, size=(resamples, images))
    drawn += images * np.arange(resamples)[:, None]  # to count all resamples at once
    counts = np.bincount(drawn.ravel(), minlength=drawn.size)
    return counts.reshape(resamples, images).astype(np.float32)


def seed_shares(seeds: int, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """v [r, s], rows of sum 1: the shares of s seeds among s drawn with replacement.

    Resampling few seeds understates their variance by (s − 1)/s, so the shares are spread by √(s/(s − 1)).
    """
    if seeds == 1:
        return np.ones((resamples, 1))
    shares = image_counts(seeds, resamples, seed).astype(np.float64) / seeds
    return 1 / seeds + (shares - 1 / seeds) * np.sqrt(seeds / (seeds - 1))


def resampled_mean(values: ArrayLike, counts: Counts) -> Floats:
    """The mean of the images' values in every resample, [r]."""
    return (counts @ np.asarray(values, dtype=np.float32)).astype(np.float64) / counts.shape[1]


def resampled_ece(confidence: ArrayLike, correct: ArrayLike, counts: Counts, bins: int = 15) -> Floats:
    """`expected_calibration_error` in every resample, [r].

    Σ_b |Σ_{i in b} w_i (confidence_i − correct_i)| / n
    """
    sure = np.minimum(np.asarray(confidence, dtype=np.float64), 1.0)
    index = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], sure, side="left")
    gaps = np.zeros((len(sure), bins), dtype=np.float32)
    gaps[np.arange(len(sure)), index] = sure - np.asarray(correct, dtype=np.float64)
    return np.abs((counts @ gaps).astype(np.float64)).sum(1) / counts.shape[1]


def resampled_auroc(scores: ArrayLike, positives: ArrayLike, counts: Counts) -> Floats:
    """`auroc` in every resample, [r]; NaN where one holds no positive or no negative."""
    values, positive = np.asarray(scores), np.asarray(positives, dtype=bool)
    order = np.argsort(values, kind="stable")
    _, starts = np.unique(values[order], return_index=True)  # equal scores are a group and count half
    drawn = counts[:, order].astype(np.float64)
    above = np.add.reduceat(drawn * positive[order], starts, axis=1)
    below = np.add.reduceat(drawn * ~positive[order], starts, axis=1)
    lower = np.cumsum(below, axis=1) - below
    pairs = above.sum(1) * below.sum(1)
    wins = (above * (lower + below / 2)).sum(1)
    return np.divide(wins, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)


def interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """The middle share of the resamples."""
    low, high = np.nanquantile(np.asarray(values), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
