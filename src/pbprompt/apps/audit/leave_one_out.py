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

from pbprompt.evidence.evidence import KEPT, Evidence, Kept, Statistics
from pbprompt.evidence.expert import Seen
from pbprompt.evidence.fitted import FittedEvidence, fit_evidence
from pbprompt.evidence.label_head import fit_label_head
from pbprompt.evidence.series import places_in_class
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.vision.similarity import unit

RATIO = 1 / 20
FOLDS = 5  # of multi-label images, each judged by the others
FEWEST_CONFUSED = 2  # images of a pair of classes: one may be chance, or a wrong label
CONFUSED_SHARE = 0.05  # of their images
OUTLIER_SHARE = 0.01
FEWEST_IMAGES = 20  # below which a hundredth means nothing


class Judgement(NamedTuple):
    """Of n labelled images, in the order given, each by a model without it."""

    labels: Int[Tensor, " n"]
    probabilities: Float[Tensor, "n k"]
    odds: Float[Tensor, " n"]
    judged: Bool[Tensor, " n"]
    """its class has another image"""

    @property
    def of_label(self) -> Float[Tensor, " n"]:
        """The probability of its own label."""
        return self.probabilities.gather(1, self.labels.unsqueeze(1)).squeeze(1)


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
    among, odds, several = _left_out(unit(images[rows]), own[rows], unit(texts)[known], scale)
    probabilities = torch.zeros(len(labels), len(texts))
    probabilities[:, known] = among[place].float()
    return Judgement(labels, probabilities, odds[place].float(), several[place])


def _left_out(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "k d"], scale: float
) -> tuple[Float[Tensor, "n k"], Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Of each image without it: p, how well known it looks, and whether its class has another.

    Of very many images some are held out one by one (`evidence/expert.py`), and the others by fifths.
    """
    sight = Sight((x.shape[1],), (scale,), lambda names: texts[[*names]])
    some = torch.arange(0, len(x), -(-len(x) // KEPT))
    kept = Kept(x[some].float(), labels[some], torch.ones(len(some), dtype=torch.float64), some)

    def fitted(chosen: Bool[Tensor, " n"]) -> FittedEvidence:
        """By the sums of those that are chosen; `some` stand for them all."""
        sums = Statistics.of(x[chosen], labels[chosen], len(texts))
        return fit_evidence(Shown(tuple(range(len(texts))), Evidence(sums, kept)), sight)

    several = (labels.bincount() > 1)[labels]
    probabilities = torch.full((len(x), len(texts)), 1 / len(texts), dtype=torch.float64)
    odds = torch.zeros(len(x), dtype=torch.float64)
    rest = several.clone()
    whole = fitted(torch.ones_like(several))
    some = some[whole.shown.judged]
    probabilities[some], odds[some] = whole.held_out_answers(), whole.held_out.looks
    rest[some] = False
    fold = torch.where(rest, (places_in_class(labels) + labels) % FOLDS, -1)
    for number in fold[rest].unique().tolist():
        out = fold == number
        others = fitted(~out)
        views = [Seen(x[out].double())]
        scores, odds[out] = others.scored(views)
        probabilities[out] = others.averaged(views, scores, odds[out])
    return probabilities, odds, several


class LabelError(NamedTuple):
    """Image `row` looks like `suggested`."""

    row: int
    suggested: int
    label_probability: float
    suggested_probability: float


def confident_classes(said: Judgement) -> Int[Tensor, " n"]:
    """The class each image counts as; −1 where none is believed, or the image cannot be judged."""
    labels, own = said.labels[said.judged], said.of_label[said.judged]
    classes = said.probabilities.shape[1]
    sums = own.new_zeros(classes).index_add_(0, labels, own)
    counts = labels.bincount(minlength=classes)
    thresholds = torch.where(counts > 0, sums / counts.clamp(min=1), torch.inf)
    best = torch.where(said.probabilities >= thresholds, said.probabilities, -1.0).max(1)
    return torch.where((best.values >= 0) & said.judged, best.indices, -1)


def label_errors(said: Judgement) -> list[LabelError]:
    """The likely errors, the clearest first."""
    believed, own, best = confident_classes(said), said.of_label, said.probabilities.max(1)
    count = int(((believed >= 0) & (believed != said.labels)).sum())
    ratio = torch.where(said.judged, own / best.values, torch.inf)
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
    x, given = unit(images), torch.empty(targets.shape)  # of what the table says
    fold = torch.arange(len(x)) % FOLDS
    for one in range(FOLDS):
        here = fold == one
        has = fit_label_head(x[~here], targets[~here], unit(texts)).probabilities(x[here])
        given[here] = torch.where(targets[here] > 0, has, 1 - has)
    found = [
        LabelError(row, label, float(given[row, label]), 1 - float(given[row, label]))
        for row, label in (given <= RATIO / (1 + RATIO)).nonzero().tolist()
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


def overlaps(said: Judgement) -> list[Overlap]:
    """The pairs of classes of which at least a twentieth is confused, those with the most first."""
    classes = said.probabilities.shape[1]
    own, taken = said.labels[said.judged], said.probabilities[said.judged].argmax(1)
    table = (own * classes + taken).bincount(minlength=classes * classes).view(classes, classes)
    counts = own.bincount(minlength=classes).tolist()
    both = (table + table.T).fill_diagonal_(0)
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
