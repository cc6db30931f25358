"""Whether confidence means what it says: of items predicted with probability p, a share p is right."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.model.metrics.arrays import Floats, Integers


@dataclass(frozen=True)
class ReliabilityBins:
    """Items grouped by confidence, as a reliability diagram draws them.

    Bin b holds the confidences in (edges[b], edges[b + 1]], the first one its lower edge too. Mean confidence
    and accuracy are NaN in an empty bin.
    """

    edges: Floats
    count: Integers
    confidence: Floats
    accuracy: Floats

    @property
    def error(self) -> float:
        """The expected calibration error, ECE = Σ_b (n_b / n) · |accuracy_b − confidence_b|."""
        full = self.count > 0
        return float(np.average(np.abs(self.accuracy - self.confidence)[full], weights=self.count[full]))


def confidence_bins(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 15, adaptive: bool = False
) -> ReliabilityBins:
    """Group items by the probability of their prediction: bins of equal width, or (adaptive) of equal mass.

    Equal mass means sizes that differ by one at most. Equal confidences always share a bin, though, so that
    the order of the items does not matter; many of them make one bin larger and others empty.
    """
    # Rounding may lift a probability a little above 1, outside the last bin.
    confidence = np.minimum(np.asarray(confidence, dtype=np.float64), 1.0)
    edges = _equal_mass_edges(confidence, bins) if adaptive else np.linspace(0, 1, bins + 1)
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(index, minlength=bins)

    def mean(values: ArrayLike) -> Floats:
        total = np.bincount(index, weights=np.asarray(values, dtype=np.float64), minlength=bins)
        return np.divide(total, count, out=np.full(bins, np.nan), where=count > 0)

    return ReliabilityBins(edges, count, mean(confidence), mean(correct))


def _equal_mass_edges(confidence: Floats, bins: int) -> Floats:
    ordered, n = np.sort(confidence), len(confidence)
    # The inner edge k is the last confidence among the lowest k/bins of the items, in whole numbers: a
    # quantile in floating point could fall just short of the very value it stands for.
    last = np.maximum(np.arange(1, bins) * n // bins - 1, 0)
    return np.concatenate([ordered[:1], ordered[last], ordered[-1:]])
