"""How well a multi-label model does.

    AP_c = Σ_k (R_k − R_{k−1}) P_k      precision at each recall, down the ranking of images by p(c | x)
    mAP  = mean of AP_c over the labels that some image has
    F1   = 2·right / (with the label + said to have it)

The micro F1 is of all decisions together, the macro F1 the mean over those labels. AP needs no threshold, F1
rests on one. Images of equal probability are ranked together, so that their order says nothing. A label that
no image has is in no mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pbprompt.model.metrics.confusion import ClassFigures


def average_precision(scores: Float[Tensor, " n"], has: Bool[Tensor, " n"]) -> float | None:
    """AP of one label; None where no image has it."""
    total = int(has.sum())
    if not total:
        return None
    ranked, order = scores.double().sort(descending=True)
    right = has[order].double().cumsum(0)
    last = torch.ones(len(ranked), dtype=torch.bool)  # of the images of equal score
    last[:-1] = ranked[:-1] != ranked[1:]
    right, said = right[last], (torch.arange(1, len(ranked) + 1)[last]).double()
    gained = torch.diff(right, prepend=right.new_zeros(1))
    return float((gained / total * right / said).sum())


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
