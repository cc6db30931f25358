"""What the other images say of each labelled image: likely label errors, overlapping classes, outliers.

    t_j = mean of p_ij over the images labelled j                    how sure the model is when right
    E = #{i : the likeliest j with p_ij ≥ t_j is not i's label}      confident learning's count of errors
    r_i = p_i,label / max_j p_ij                                     likely errors: the E lowest, if r ≤ 1/20
    overlap(a, b) = (#{i labelled a, taken for b} + #{i labelled b, taken for a}) / (n_a + n_b)
    familiarity_i = #{j : odds_j ≤ odds_i} / n                       outliers: the lowest hundredth

p_i is what the closed-form model, fitted to all labelled images but i, says of i, so that no image vouches
for its own label; odds_i is what it says for "one of the classes" against "something else". With an image go
its look-alikes of the same label: a copy must not vouch for a label either. An image whose class has no other
cannot be judged: without it, its class is a mere name.

E is the count of Northcutt et al. (JAIR 2021); which images they are, r tells better than membership in that
count (`python -m benchmarks.look` measures both). Every collection has its least familiar images: whether
they belong, a person says.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.conjugate import make_frame
from pbprompt.core.evidence_choice import choose
from pbprompt.core.left_out import left_out_answers
from pbprompt.core.likelihood import unit
from pbprompt.core.look_alikes import Alike, look_alikes
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import learn_text_map, move

CHOOSING = 2048  # images that stand for all when κ and T are chosen
LARGEST_CLASS = 8192  # images of a class, up to which look-alikes are looked for: all its pairs are compared
RATIO = 1 / 20
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
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "k d"], scale: float
) -> Judgement | None:
    """For image features and the text features of the class names; `scale`: exp(logit scale).

    None where fewer than two classes have images: there is nothing to tell apart.
    """
    x, plain = unit(images).double(), unit(texts).double()
    statistics = Statistics.of(x, labels, len(texts))
    known = statistics.counts.nonzero().squeeze(1)
    if len(known) < 2:
        return None
    frame = make_frame(statistics, _moved_texts(statistics, plain, known))
    z = x @ frame.basis
    few = int(statistics.counts.max()) <= LARGEST_CLASS
    alike = look_alikes(z, labels) if few else Alike.none(z)
    some = torch.arange(0, len(z), -(-len(z) // CHOOSING))
    choice = choose(frame, z[some], labels[some], scale, plain @ frame.basis, alike.at(some))
    said = left_out_answers(frame, choice, z, labels, known, alike)
    probabilities = torch.zeros(len(z), len(texts))
    probabilities[:, known] = said.probabilities.float()
    return Judgement(probabilities, said.odds.float(), said.several)


def _moved_texts(
    statistics: Statistics, texts: Float[Tensor, "k d"], known: Int[Tensor, " seen"]
) -> Float[Tensor, "k d"]:
    """Texts where the other classes' photographs put them, as the model's own are."""
    counts = statistics.counts[known]
    text_map = learn_text_map(statistics.sums[known] / counts.unsqueeze(1), counts, texts[known])
    place = torch.full((len(texts),), -1)
    place[known] = torch.arange(len(known))
    return move(text_map, texts, place)


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


@dataclass(frozen=True)
class Overlap:
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


@dataclass(frozen=True)
class Outlier:
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
