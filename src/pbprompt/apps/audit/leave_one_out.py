"""What the other images say of each labelled image: likely label errors, overlapping classes, outliers.

    t_j = mean of p_ij over the images labelled j                    how sure the model is when right
    E = #{i : the likeliest j with p_ij ≥ t_j is not i's label}      confident learning's count of errors
    r_i = p_i,label / max_j p_ij                                     likely errors: the E lowest, if r ≤ 1/20
    overlap(a, b) = (#{i labelled a, taken for b} + #{i labelled b, taken for a}) / (n_a + n_b)
    familiarity_i = #{j : odds_j ≤ odds_i} / n                       outliers: the lowest hundredth

p_i is what the closed-form model, fitted to all labelled images but i, says of i, so that no image vouches
for its own label; odds_i is how well known it looks to that model. With an image go its copies of the same
label, which must not vouch for it either. An image whose class has no other cannot be judged: without it, its
class is a mere name.

E is the count of Northcutt et al. (JAIR 2021); which images they are, r tells better than membership in that
count (`python -m benchmarks.look` measures both). Every collection has its least familiar images: whether
they belong, a person says.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import KEPT, Evidence, Kept
from pbprompt.evidence.expert import Seen
from pbprompt.evidence.fitted import FittedEvidence, fit_evidence
from pbprompt.evidence.folds import places_in_class
from pbprompt.evidence.label_head import fit_label_head
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.evidence.statistics import Statistics
from pbprompt.vision.similarity import unit

RATIO = 1 / 20
FOLDS = 5  # of multi-label images, each judged by the others
FEWEST_CONFUSED = 2  # images of a pair of classes: one may be chance, or a wrong label
CONFUSED_SHARE = 0.05  # of their images
OUTLIER_SHARE = 0.01
FEWEST_IMAGES = 20  # below which a hundredth means nothing


class Judgement(NamedTuple):
    """Of n images, in the order given, each by a model without it."""

    probabilities: Float[Tensor, "n k"]
    odds: Float[Tensor, " n"]
    judged: Bool[Tensor, " n"]
    """its class has another image"""


def judge(
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    texts: Float[Tensor, "k d"],
    scale: float,
    copies: Sequence[Sequence[int]] = (),
) -> Judgement | None:
    """For image features and the text features of the class names; `scale`: exp(logit scale).

    `copies`: rows that hold one picture; those of one label count once and are answered as one. None where
    fewer than two classes have images: there is nothing to tell apart.
    """
    known, own = labels.unique(return_inverse=True)
    if len(known) < 2:
        return None
    first = torch.arange(len(labels))
    for group in copies:
        heads: dict[int, int] = {}
        for row in group:
            first[row] = heads.setdefault(int(labels[row]), row)
    rows, place = first.unique(return_inverse=True)
    said, looks, several = _left_out(unit(images[rows]), own[rows], unit(texts)[known], scale)
    probabilities = torch.zeros(len(labels), len(texts))
    probabilities[:, known] = said[place].float()
    return Judgement(probabilities, looks[place].float(), several[place])


def _left_out(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "k d"], scale: float
) -> tuple[Float[Tensor, "n k"], Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Of each image without it: p, how well known it looks, and whether its class has another.

    Of very many images some are held out one by one (`evidence/expert.py`), and the others by quarters.
    """
    names, every = range(len(texts)), torch.ones(len(x), dtype=torch.bool)
    sight = Sight((x.shape[1],), (scale,), lambda asked: texts[[*asked]])
    some = torch.arange(0, len(x), -(-len(x) // KEPT))
    kept = Kept(x[some].float(), labels[some], torch.ones(len(some), dtype=torch.float64), some)

    def fitted(chosen: Bool[Tensor, " n"]) -> FittedEvidence:
        """By the sums of those that are chosen; `some` stand for them all."""
        sums = Statistics.of(x[chosen], labels[chosen], len(texts))
        return fit_evidence(Shown(tuple(names), Evidence(sums, kept)), sight)

    several = (labels.bincount() > 1)[labels]
    said = torch.full((len(x), len(texts)), 1 / len(texts), dtype=torch.float64)
    looks = torch.zeros(len(x), dtype=torch.float64)
    whole = fitted(every)
    some = some[whole.shown.judged]
    said[some], looks[some] = whole.held_out_answers(), whole.held_out.looks
    every[some] = False
    fold = torch.where(every & several, (places_in_class(labels) + labels) % FOLDS, -1)
    for number in fold[fold >= 0].unique().tolist():
        out = fold == number
        rest = fitted(~out)
        views = [Seen(x[out].double())]
        scores, looks[out] = rest.scored(views)
        said[out] = rest.averaged(views, scores, looks[out])
    return said, looks, several


class LabelError(NamedTuple):
    """Image `row` looks like `suggested`."""

    row: int
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
        LabelError(row, int(best.indices[row]), float(own[row]), float(best.values[row]))
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
        LabelError(row, label, float(said[row, label]), 1 - float(said[row, label]))
        for row, label in (said <= RATIO / (1 + RATIO)).nonzero().tolist()
    ]
    return sorted(found, key=lambda error: error.label_probability)


class Overlap(NamedTuple):
    """Two classes; `confused` of their `images` are taken for the other."""

    first: int
    second: int
    confused: int
    images: int

    @property
    def share(self) -> float:
        return self.confused / self.images


def overlaps(
    probabilities: Float[Tensor, "n k"], labels: Int[Tensor, " n"], judged: Bool[Tensor, " n"]
) -> list[Overlap]:
    """The pairs of classes of which at least a twentieth is confused, those with the most first."""
    classes = probabilities.shape[1]
    own, taken = labels[judged], probabilities[judged].argmax(1)
    table = (own * classes + taken).bincount(minlength=classes * classes).view(classes, classes)
    counts = own.bincount(minlength=classes).tolist()
    both = table + table.T
    both.fill_diagonal_(0)
    found = [
        Overlap(first, second, int(both[first, second]), counts[first] + counts[second])
        for first, second in both.triu().nonzero().tolist()
    ]
    kept = [pair for pair in found if pair.confused >= FEWEST_CONFUSED and pair.share >= CONFUSED_SHARE]
    return sorted(kept, key=lambda pair: (-pair.share, pair.first, pair.second))


class Outlier(NamedTuple):
    """Image `row`; of all images, this share looks no more like one of the classes."""

    row: int
    familiarity: float


def outliers(odds: Float[Tensor, " n"], share: float = OUTLIER_SHARE) -> list[Outlier]:
    """The least familiar first."""
    if len(odds) < FEWEST_IMAGES:
        return []
    count = math.ceil(share * len(odds))
    lowest = odds.sort(stable=True).indices[:count]
    return [Outlier(int(row), (place + 1) / len(odds)) for place, row in enumerate(lowest)]
