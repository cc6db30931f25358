"""How well a multi-label model does.

    AP_c = Σ_k (R_k − R_{k−1}) P_k      precision at each recall, down the ranking of images by p(c | x)
    mAP  = mean of AP_c over the labels that some image has
    F1   = 2·right / (with the label + said to have it)

The micro F1 is of all decisions together, the macro F1 the mean over those labels. AP needs no threshold, F1
rests on one. Images of equal probability are ranked together, so that their order says nothing. A label that
no image has is in no mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pbprompt.evaluate.per_class import ClassFigures


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


def multi_label_figures(
    probabilities: Float[Tensor, "n k"],
    has: Bool[Tensor, "n k"],
    given: Bool[Tensor, "n k"],
    classes: Sequence[str],
) -> dict[str, Any]:
    """The figures of all labels together, and of each under `labels`; `given`: what was decided."""
    right = has & given
    parts = []
    for place, name in enumerate(classes):
        counts = (int(one[:, place].sum()) for one in (has, given, right))
        one = ClassFigures(name, *counts).to_dict()
        parts.append({**one, "average_precision": average_precision(probabilities[:, place], has[:, place])})
    every = ClassFigures("all", int(has.sum()), int(given.sum()), int(right.sum()))
    shown = [part for part in parts if part["images"]]
    return {
        "images": len(has),
        "map": _mean([part["average_precision"] for part in shown]),
        "micro": {"precision": every.precision, "recall": every.recall, "f1": every.f1},
        "macro": {
            name: _mean([part[name] or 0.0 for part in shown]) for name in ("precision", "recall", "f1")
        },
        "exact": float((has == given).all(1).double().mean()),
        "labels_given": int(given.sum()),
        "labels_there": int(has.sum()),
        "labels_without_image": len(parts) - len(shown),
        "labels": parts,
    }


@dataclass(frozen=True, eq=False)
class LabelAnswers:
    """What was said of n images by a multi-label model, and what is true of them."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    has: Bool[Tensor, "n k"]
    probabilities: Float[Tensor, "n k"]
    thresholds: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def given(self) -> Bool[Tensor, "n k"]:
        """Labels at or above their thresholds."""
        levels = torch.tensor([self.thresholds[name] for name in self.classes])
        return self.probabilities >= levels.to(self.probabilities)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Of all labels, and of each."""
        figures = multi_label_figures(self.probabilities, self.has, self.given, self.classes)
        return {**figures, "thresholds": dict(self.thresholds)}

    def mistakes(self, label: int, *, missed: bool, most: int) -> list[int]:
        """Images that have a label and are not given it, or the reverse; where it is most wrong, first."""
        has, given = self.has[:, label], self.given[:, label]
        rows = (has & ~given if missed else ~has & given).nonzero().flatten()
        order = self.probabilities[rows, label].sort(descending=not missed, stable=True).indices
        return rows[order][:most].tolist()


def _mean(values: Sequence[Any]) -> float | None:
    return sum(values) / len(values) if values else None
