"""A model's answers on labelled images, image by image, and everything that can be read off them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.model.metrics.arrays import Floats, Integers, probabilities_and_labels
from pbprompt.model.metrics.confusion import (
    ClassFigures,
    ConfusedPair,
    confusion_matrix,
    most_confused,
    per_class,
)
from pbprompt.model.metrics.reliability import ReliabilityBins, confidence_bins
from pbprompt.model.metrics.selective import risk_coverage

EXAMPLES = 4  # of a confused pair
MOST_PAIRS = 20
MOST_POINTS = 200  # of a curve


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was said of n labelled images: of each, what was predicted and how surely."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: Integers  # [n]
    predicted: Integers  # [n]
    confidence: Floats  # [n], the probability of what was predicted

    @classmethod
    def of(
        cls, probabilities: ArrayLike, labels: ArrayLike, classes: Sequence[str], paths: Sequence[str]
    ) -> "Evaluation":
        """From class probabilities [n, C] of images, and where these are."""
        rows, truth = probabilities_and_labels(probabilities, labels)
        if len(paths) != len(rows) or len(classes) != rows.shape[1]:
            raise ValueError("there must be a path for each image and a name for each class")
        return cls(tuple(classes), tuple(paths), truth, rows.argmax(1), np.minimum(rows.max(1), 1.0))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def right(self) -> np.ndarray:
        return self.labels == self.predicted

    @cached_property
    def confusion(self) -> Integers:
        return confusion_matrix(self.labels, self.predicted, len(self.classes))

    @cached_property
    def per_class(self) -> list[ClassFigures]:
        return per_class(self.confusion, self.classes)

    @cached_property
    def confused(self) -> list[ConfusedPair]:
        return most_confused(self.confusion)

    @cached_property
    def reliability(self) -> ReliabilityBins:
        return confidence_bins(self.confidence, self.right)

    @cached_property
    def risk_coverage(self) -> tuple[Floats, Floats]:
        """Coverage and risk, thinned to points that a plot can tell apart; the last one is of all images."""
        coverage, risk = risk_coverage(self.confidence, self.right)
        kept = np.unique(np.linspace(0, len(self) - 1, MOST_POINTS).round().astype(int))
        return coverage[kept], risk[kept]

    def examples(self, pair: ConfusedPair, most: int = EXAMPLES) -> list[int]:
        """Images of a confused pair, those first of which the model is surest: there it is most wrong."""
        rows = np.flatnonzero((self.labels == pair.true) & (self.predicted == pair.taken_for))
        return rows[np.argsort(-self.confidence[rows], kind="stable")][:most].tolist()

    def to_dict(self) -> dict[str, Any]:
        """All of it for programs; an empty bin's mean is null."""
        bins = self.reliability
        coverage, risk = self.risk_coverage
        return {
            "per_class": [figures.to_dict() for figures in self.per_class],
            "confusion": {"classes": list(self.classes), "matrix": self.confusion.tolist()},
            "confused_pairs": [self._pair(pair) for pair in self.confused[:MOST_PAIRS]],
            "reliability": {
                "edges": bins.edges.tolist(),
                "images": bins.count.tolist(),
                "confidence": _without_nan(bins.confidence),
                "accuracy": _without_nan(bins.accuracy),
            },
            "risk_coverage": {"coverage": coverage.tolist(), "risk": risk.tolist()},
        }

    def _pair(self, pair: ConfusedPair) -> dict[str, Any]:
        shown = [
            {"path": self.paths[row], "probability": round(float(self.confidence[row]), 6)}
            for row in self.examples(pair)
        ]
        return {
            "true": self.classes[pair.true],
            "taken_for": self.classes[pair.taken_for],
            "images": pair.images,
            "share": pair.share,
            "examples": shown,
        }


def _without_nan(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
