"""A model's answers on labelled images, image by image, and everything that can be read off them.

    AP_c = Σ_k (R_k − R_{k−1}) P_k      precision at each recall, down the ranking of images by p(c | x)
    mAP  = mean of AP_c over the labels that some image has
    F1   = 2·right / (with the label + given it)

Of a multi-label model the micro F1 is of all decisions together, the macro F1 the mean over those labels. AP
needs no threshold, F1 rests on one. Images of equal probability are ranked together, so that their order says
nothing. A label that no image has is in no mean. All are fractions and nats; percentages are left to reports.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from pbprompt.model.metrics.classification import (
    ClassFigures,
    ConfusedPair,
    Floats,
    Integers,
    ReliabilityBins,
    confidence_bins,
    confusion_matrix,
    distributions,
    most_confused,
    per_class,
)
from pbprompt.model.metrics.selective import area_under_risk_coverage, risk_coverage

EXAMPLES = 4  # of a confused pair
MOST_PAIRS = 20
MOST_POINTS = 200  # of a curve
# log of the smallest normal float64, about −708: a true class given no probability at all costs this much,
# so that one such item cannot turn a whole record into infinity.
LOG_FLOOR = math.log(np.finfo(np.float64).tiny)


def summary(log_probabilities: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The standard set, from log-probabilities [n, C]: in float32 a probability below 1e-45 is already 0.

        accuracy, top5 = share of items whose label is the likeliest class, among the five likeliest (C > 5)
        macro_f1       = mean over classes of 2·TP / (2·TP + FP + FN)
        macro_recall   = mean over the classes that have images of TP / (TP + FN): each counts the same
        nll            = −(1/n) Σ log p(yᵢ), each of them no lower than `LOG_FLOOR`
        brier          = (1/n) Σᵢ Σ_c (p_ic − [c = yᵢ])²                         0 at best, 2 at worst
        ece, ece_adaptive, aurc                               `classification.py`, `selective.py`

    The lowest class index wins a tie. The mean of F1 runs over the classes that occur among labels or
    predictions, as scikit-learn's default does: one that is only predicted counts as 0.
    """
    rows, truth = distributions(log_probabilities, labels, log=True)
    classes, predicted, at_truth = rows.shape[1], rows.argmax(1), (np.arange(len(rows)), truth)
    own, right = rows[at_truth], predicted == truth
    figures = {"accuracy": right.mean()}
    if classes > 5:
        ties_before = (rows == own[:, None]) & (np.arange(classes) < truth[:, None])
        figures["top5"] = (((rows > own[:, None]) | ties_before).sum(1) < 5).mean()
    matrix = confusion_matrix(truth, predicted, classes)
    occurrences = matrix.sum(0) + matrix.sum(1)
    seen, images = occurrences > 0, matrix.sum(1)
    probabilities = np.exp(rows)
    confidence = probabilities.max(1)
    probabilities[at_truth] -= 1  # what is left of each row are its misses
    figures |= {
        "macro_f1": (2 * np.diag(matrix)[seen] / occurrences[seen]).mean(),
        "macro_recall": (np.diag(matrix)[images > 0] / images[images > 0]).mean(),
        "nll": -np.maximum(own, LOG_FLOOR).mean(),
        "brier": np.einsum("nc,nc->n", probabilities, probabilities).mean(),
        "ece": confidence_bins(confidence, right).error,
        "ece_adaptive": confidence_bins(confidence, right, adaptive=True).error,
        # Log-probabilities still tell apart confidences that all round to 1.
        "aurc": area_under_risk_coverage(rows.max(1), right),
    }
    return {name: float(value) for name, value in figures.items()}


def harmonic_mean(base: float, new: float) -> float:
    """H = 2·B·N / (B + N) of base and new accuracy; 0 where both are 0."""
    if not (0 <= base < math.inf and 0 <= new < math.inf):
        raise ValueError(f"base and new accuracy must be finite and not negative, not {base} and {new}")
    return float(2 * base * new / (base + new)) if base + new > 0 else 0.0


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
        rows, truth = distributions(probabilities, labels)
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
        means = {
            name: [None if np.isnan(mean) else float(mean) for mean in getattr(bins, name)]
            for name in ("confidence", "accuracy")
        }
        return {
            "per_class": [figures.to_dict() for figures in self.per_class],
            "confusion": {"classes": list(self.classes), "matrix": self.confusion.tolist()},
            "confused_pairs": [self._pair(pair) for pair in self.confused[:MOST_PAIRS]],
            "reliability": {
                "edges": bins.edges.tolist(),
                "images": bins.count.tolist(),
                **means,
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


def average_precision(scores: Float[Tensor, " n"], has: Bool[Tensor, " n"]) -> float | None:
    """AP of one label; None where no image has it."""
    total = int(has.sum())
    if not total:
        return None
    ranked, order = scores.double().sort(descending=True)
    right = has[order].double().cumsum(0)
    last = torch.ones(len(ranked), dtype=torch.bool)  # of the images of equal score
    last[:-1] = ranked[:-1] != ranked[1:]
    right, given = right[last], (torch.arange(1, len(ranked) + 1)[last]).double()
    gained = torch.diff(right, prepend=right.new_zeros(1))
    return float((gained / total * right / given).sum())


def mean_average_precision(scores: Float[Tensor, "n k"], has: Bool[Tensor, "n k"]) -> float | None:
    """mAP; None where no image has any label."""
    parts = [average_precision(one, own) for one, own in zip(scores.T, has.T, strict=True)]
    return _mean([part for part in parts if part is not None])


@dataclass(frozen=True, eq=False)
class MultiLabelEvaluation:
    """What was said of n images by a multi-label model, and what is true of them."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    has: Bool[Tensor, "n k"]
    probabilities: Float[Tensor, "n k"]
    thresholds: tuple[float, ...]  # of each class

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def given(self) -> Bool[Tensor, "n k"]:
        """Labels at or above their thresholds."""
        return self.probabilities >= self.probabilities.new_tensor(self.thresholds)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Of all labels together, and of each under `labels`."""
        counts = [part.sum(0).tolist() for part in (self.has, self.given, self.has & self.given)]
        parts = []
        for place, (name, *three) in enumerate(zip(self.classes, *counts, strict=True)):
            precision = average_precision(self.probabilities[:, place], self.has[:, place])
            parts.append({**ClassFigures(name, *three).to_dict(), "average_precision": precision})
        every = ClassFigures("all", *map(sum, counts))
        shown = [part for part in parts if part["images"]]
        return {
            "images": len(self.has),
            "map": _mean([part["average_precision"] for part in shown]),
            "micro": {"precision": every.precision, "recall": every.recall, "f1": every.f1},
            "macro": {
                name: _mean([part[name] or 0.0 for part in shown]) for name in ("precision", "recall", "f1")
            },
            "exact": float((self.has == self.given).all(1).double().mean()),
            "labels_given": every.answered,
            "labels_there": every.images,
            "labels_without_image": len(parts) - len(shown),
            "labels": parts,
            "thresholds": dict(zip(self.classes, self.thresholds, strict=True)),
        }

    def mistakes(self, label: int, *, missed: bool, most: int) -> list[int]:
        """Images that have a label and are not given it, or the reverse; where it is most wrong, first."""
        has, given = self.has[:, label], self.given[:, label]
        rows = (has & ~given if missed else ~has & given).nonzero().flatten()
        order = self.probabilities[rows, label].sort(descending=not missed, stable=True).indices
        return rows[order][:most].tolist()


def _mean(values: Sequence[Any]) -> float | None:
    return sum(values) / len(values) if values else None
