"""Images whose label the other images speak against.

    t_j = mean of p_ij over the images labelled j                    how sure the model is when right
    E = #{i : the likeliest j with p_ij ≥ t_j is not i's label}      confident learning's count of errors
    r_i = p_i,label / max_j p_ij                                     likely errors: the E lowest, if r ≤ 1/20

p is what the model without image i says of it, so that no image vouches for its own label. The count is
that of Northcutt et al. (JAIR 2021); which images they are, the ratio tells better than membership in that
count (`python -m benchmarks.look` measures both).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.label_head import fit_label_head
from pbprompt.core.likelihood import unit

RATIO = 1 / 20
FOLDS = 5  # of multi-label images, each judged by the others


@dataclass(frozen=True)
class LabelError:
    """Image `row` is labelled `label` and looks like `suggested`."""

    row: int
    label: int
    suggested: int
    label_probability: float
    suggested_probability: float


def confident_classes(
    probabilities: Float[Tensor, "n k"], labels: Int[Tensor, " n"], judged: Bool[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """The class each image counts as; −1 where none is believed, or the image cannot be judged."""
    classes = probabilities.shape[1]
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    sums = own.new_zeros(classes).index_add_(0, labels[judged], own[judged])
    counts = labels[judged].bincount(minlength=classes)
    thresholds = torch.where(counts > 0, sums / counts.clamp(min=1), torch.inf)
    best = torch.where(probabilities >= thresholds, probabilities, -1.0).max(1)
    return torch.where((best.values >= 0) & judged, best.indices, -1)


def label_errors(
    probabilities: Float[Tensor, "n k"], labels: Int[Tensor, " n"], judged: Bool[Tensor, " n"]
) -> list[LabelError]:
    """The likely errors, the clearest first."""
    seen = confident_classes(probabilities, labels, judged)
    count = int(((seen >= 0) & (seen != labels)).sum())
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    best = probabilities.max(1)
    ratio = torch.where(judged, own / best.values, torch.inf)
    lowest = ratio.sort(stable=True).indices[:count]
    return [
        LabelError(row, int(labels[row]), int(best.indices[row]), float(own[row]), float(best.values[row]))
        for row in lowest[ratio[lowest] <= RATIO].tolist()
    ]


def multi_label_errors(
    images: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], texts: Float[Tensor, "k d"]
) -> list[LabelError]:
    """Labels that an image likely misses, or has wrongly, by a multi-label model fitted without its fifth.

    `suggested` is that label; the probabilities are those of what the table says of it, and of the opposite.
    """
    if len(images) < FOLDS:
        return []
    x, said = unit(images), torch.empty(targets.shape)
    fold = torch.arange(len(x)) % FOLDS
    for one in range(FOLDS):
        here = fold == one
        has = fit_label_head(x[~here], targets[~here], unit(texts)).probabilities(x[here])
        said[here] = torch.where(targets[here] > 0, has, 1 - has)
    found = [
        LabelError(row, label, label, float(said[row, label]), 1 - float(said[row, label]))
        for row, label in (said <= RATIO / (1 + RATIO)).nonzero().tolist()
    ]
    return sorted(found, key=lambda error: error.label_probability)
