"""What an expert is: one reading of labelled photographs, which scores every class of an image.

An expert is one function, `fit(photographs) -> (expert, held out)`, and its `Kind`:

- the expert itself is a NamedTuple of tensors (they are what a model saves), with `scores`, `slopes` and
  `closeness`, as `Expert` has them;
- held out is what it would have said of each of its photographs had that one not been there. That is what
  experts are weighed by: one that cheats here is trusted too much.

`experts/__init__.py` lists them in their order; whatever stacks, weighs, saves or explains them
(`posterior.py`, `weights.py`, `novelty.py`) knows none by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import Evidence, Kept, Statistics, apart, feature_keys
from pbprompt.evidence.series import places_in_class, series_folds
from pbprompt.evidence.text_map import TextMap, learn_text_map

if TYPE_CHECKING:
    from pbprompt.evidence.experts.patches import Patches

FOLDS = 16
SERIES_FOLDS = 4
Folds = list[tuple[Int[Tensor, " g"], Int[Tensor, " a"]]]
CELLS = 1 << 22  # of a table of held-out photographs by classes


class Seen(NamedTuple):
    """Images as one backbone sees them."""

    global_: Float[Tensor, "b d"]
    """of length 1"""
    patches: Float[Tensor, "b m e"] | None = None


@dataclass(frozen=True, eq=False)
class Photographs:
    """Labelled photographs and names as one backbone sees them: what an expert is fitted to.

    Every class has photographs; the sums are of all of them, the rows of those that are held out in turn.
    """

    statistics: Statistics
    images: Float[Tensor, "n d"]
    """float64, of length 1"""
    labels: Int[Tensor, " n"]
    shares: Float[Tensor, " n"]
    """how often each counts"""
    texts: Float[Tensor, "k d"]
    """float64, of length 1; 0 of names that nobody can read"""
    scale: float
    """exp(logit scale)"""
    groups: Int[Tensor, " n"] | None = None
    """the series each is of; None: each is by itself"""
    patches: "Patches | None" = None
    """what was made of their patches, where these are compared: they are many, and not kept"""

    @classmethod
    def of(cls, statistics: Statistics, kept: Kept, texts: Float[Tensor, "k d"], scale: float) -> Self:
        """From the sums of all photographs, and those that are kept."""
        rows = judged_rows(len(kept.labels), len(texts)).to(kept.labels)
        images, shares = kept.images[rows].double(), kept.weights[rows]
        return cls(statistics, images, kept.labels[rows], shares, texts.double(), scale)

    @classmethod
    def by_each(
        cls,
        evidence: Evidence,
        known: Int[Tensor, " k"],
        widths: Sequence[int],
        texts: Float[Tensor, "k d"],
        scales: Sequence[float],
    ) -> list[Self]:
        """Of several backbones whose features are side by side, each; of the `known` classes alone."""
        sums, kept = evidence
        labels = torch.searchsorted(known, kept.labels)
        few = sums._replace(counts=sums.counts[known], sums=sums.sums[known]).by_each(widths)
        parts = zip(few, apart(kept.images, widths), apart(texts, widths), scales, strict=True)
        return [
            cls.of(own, kept._replace(images=images, labels=labels), text, scale)
            for own, images, text, scale in parts
        ]

    @property
    def classes(self) -> int:
        return len(self.texts)

    @cached_property
    def placed(self) -> tuple[TextMap, Float[Tensor, "k d"]]:
        """Where the names lie among images: how it was found, and t̂."""
        return learn_text_map(self.statistics.means, self.statistics.counts, self.texts)

    @cached_property
    def several(self) -> Bool[Tensor, " n"]:
        """Whether a photograph's class has others: without it, the answer is about its name."""
        n = self.statistics.counts[self.labels]
        return n - self.shares > 1e-9 * n  # sums of weights are rounded

    @cached_property
    def own(self) -> Bool[Tensor, "n k"]:
        return self.labels.unsqueeze(1) == torch.arange(self.classes).to(self.labels)

    @cached_property
    def places(self) -> Int[Tensor, " n"]:
        """Of each photograph its place in its class, by chance and whatever the order they came in."""
        order = feature_keys(self.images.float()).argsort(stable=True)
        places = torch.empty_like(order)
        places[order] = places_in_class(self.labels[order])
        return places

    @cached_property
    def folds(self) -> Folds:
        return self.dealt(FOLDS)

    def dealt(self, number: int) -> Folds:
        """Of each fold the photographs that are gone, and those of them that are asked about.

        Every class that has others is without as many of its photographs, one at least; one that is gone in
        several folds is asked about once. Photographs that are alone in their class stay.
        """
        most = self.labels.bincount(minlength=self.classes)[self.labels].clamp(max=number)
        found = []
        for fold in range(number):
            asked = self.several & (self.places % number == fold)
            if asked.any():
                gone = self.several & (self.places % most == fold % most)
                found.append((gone.nonzero().squeeze(1), asked.nonzero().squeeze(1)))
        return found

    @cached_property
    def left(self) -> Float[Tensor, " n"]:
        """Of each photograph's class the share that is left where it is held out."""
        share = torch.ones_like(self.shares)
        for gone, asked in self.folds:
            lost = torch.zeros_like(self.statistics.counts).index_add_(
                0, self.labels[gone], self.shares[gone]
            )
            share[asked] = (1 - lost / self.statistics.counts)[self.labels[asked]]
        return share

    def without(self, gone: Int[Tensor, " g"]) -> Self:
        """The other photographs, and their sums."""
        lost = Statistics.of(self.images[gone], self.labels[gone], self.classes, self.shares[gone])
        sums = Statistics(*(mine - its for mine, its in zip(self.statistics, lost, strict=True)))
        rest = torch.ones(len(self.labels), dtype=torch.bool).to(self.several)
        rest[gone] = False
        few = self.images[rest], self.labels[rest], self.shares[rest]
        return type(self)(sums, *few, self.texts, self.scale)


class HeldOut(NamedTuple):
    """What an expert says of each of its photographs without it."""

    scores: Float[Tensor, "n k"]
    """by folds (`Photographs.folds`), all classes without as many; of a class's only one, without it"""
    closeness: Float[Tensor, " n"] | None = None
    """without that photograph alone"""
    without_class: Float[Tensor, " n"] | None = None
    """its closeness to the other classes, without all photographs of its own"""


class HeldOutPhotographs(NamedTuple):
    """Photographs as the model without each of them sees them."""

    labels: Int[Tensor, " n"]
    shares: Float[Tensor, " n"]
    """how often each counts"""
    left: Float[Tensor, " n"]
    """the share of its class that is left where it is held out"""
    several: Bool[Tensor, " n"]
    """whether the class has photographs left: without, the answer is about its name"""
    scores: Float[Tensor, "e n k"]
    """E"""
    closeness: Float[Tensor, "m n"]
    """N, of the experts that have it"""
    without_class: Float[Tensor, "m n"]
    """N of the other classes, without all photographs of the own one"""
    looks: Float[Tensor, " n"]
    """F (`novelty.py`)"""

    @classmethod
    def of(cls, photographs: Photographs, held_out: Sequence[HeldOut]) -> Self:
        """What all experts say of them; F is not known yet."""
        tables = ([getattr(held, name) for held in held_out] for name in HeldOut._fields)
        found = (torch.stack([table for table in each if table is not None]) for each in tables)
        shares = photographs.shares
        scores, closeness, without_class = found
        unknown, several = torch.zeros_like(shares), photographs.several
        return cls(
            photographs.labels, shares, photographs.left, several, scores, closeness, without_class, unknown
        )


class Expert(Protocol):
    """What `Posterior` asks of an expert."""

    def scores(self, images: Seen) -> Float[Tensor, "b k"]:
        """E_c of images."""
        ...

    def slopes(self, centre: Float[Tensor, " d"]) -> Float[Tensor, "k d"]:
        """∇ E_c at a global feature."""
        ...

    def closeness(self, scores: Float[Tensor, "b k"]) -> Float[Tensor, " b"] | None:
        """How near the nearest class is, from E; None where that says nothing of what is unknown."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


class Kind(NamedTuple):
    """An expert, as its file declares it."""

    fit: Callable[[Photographs], tuple[Any, HeldOut]]
    made: type[Any]
    """what `fit` makes"""
    says: str
    """what an explanation calls it"""
    usual: float
    """its weight before any photograph is judged (`weights.py`)"""
    in_spreads: bool = False
    """whether that is in spreads of the names' scores: of scores that have no scale of their own"""
    from_photographs: bool = True
    """whether photographs made it: of what is not, none need be held out"""
    from_patches: bool = False
    """whether it is made of patches, where these are compared, and held out with series there"""
    only_beyond: bool | None = None
    """of its closeness, whether being nearer than usual says nothing; None: it has none"""


def judged_rows(photographs: int, classes: int) -> Int[Tensor, " n"]:
    """Of the kept photographs those that are held out in turn, and that experts of single ones know."""
    return torch.arange(0, photographs, max(1, -(-photographs * classes // CELLS)))


def held_out_by_series(
    photographs: Sequence[Photographs],
    kinds: Sequence[Sequence[Kind]],
    left: HeldOutPhotographs,
    groups: Int[Tensor, " n"],
) -> HeldOutPhotographs:
    """What experts (`kinds`, by backbone) say without each photograph's series; `left`: without it alone."""
    labels, scores, closeness = left.labels, left.scores.clone(), left.closeness.clone()
    several = torch.zeros_like(left.several)
    for rows in series_folds(labels, groups, SERIES_FOLDS):
        found: list[Tensor] = []
        near = []
        for seen, own in zip(photographs, kinds, strict=True):
            rest, images = seen.without(rows), Seen(seen.images[rows])
            for kind in own:
                if kind.from_patches:  # which were held out with their series before
                    found.append(scores[len(found), rows])
                    continue
                expert: Expert = kind.fit(rest)[0]
                found.append(expert.scores(images))
                near.append(expert.closeness(found[-1]))
        scores[:, rows] = torch.stack(found).to(scores)
        closeness[:, rows] = torch.stack([table for table in near if table is not None]).to(closeness)
        several[rows] = True
    return left._replace(scores=scores, closeness=closeness, several=several)
