"""Photographs held out with their whole series, of which they are no evidence for each other.

Every expert is fitted again without a fold of series and asked about it (`series.series_folds`), up to
`FOLDS` times; classes of a single series cannot be judged. The closeness to the other classes is exact as it
is, since without its class a photograph is without its series.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from pbprompt.evidence.expert import Expert, HeldOutPhotographs, Kind, Photographs, Seen
from pbprompt.evidence.series import series_folds
from pbprompt.evidence.statistics import Statistics

FOLDS = 4


def held_out_by_series(
    photographs: Sequence[Photographs],
    kinds: Sequence[Sequence[Kind]],
    left: HeldOutPhotographs,
    groups: Int[Tensor, " n"],
) -> HeldOutPhotographs:
    """What experts (`kinds`, by backbone) say without each photograph's series; `left`: without it alone."""
    labels, scores, closeness = left.labels, left.scores.clone(), left.closeness.clone()
    several = torch.zeros_like(left.several)
    for rows in series_folds(labels, groups, FOLDS):
        said, near = [], []
        for seen, own in zip(photographs, kinds, strict=True):
            rest = without(seen, rows)
            patches = None if seen.patches is None else seen.patches[rows]
            asked = Seen(seen.images[rows], patches)
            for kind in own:
                expert: Expert = kind.fit(rest)[0]
                said.append(expert.scores(asked))
                near.append(expert.closeness(said[-1]))
        scores[:, rows] = torch.stack(said).to(scores)
        closeness[:, rows] = torch.stack([table for table in near if table is not None]).to(closeness)
        several[rows] = True
    return left._replace(scores=scores, closeness=closeness, several=several)


def without(photographs: Photographs, gone: Int[Tensor, " g"]) -> Photographs:
    """The other photographs, and their sums."""
    rows = (photographs.images[gone], photographs.labels[gone])
    lost = Statistics.of(*rows, photographs.classes, photographs.shares[gone])
    sums = Statistics(*(mine - its for mine, its in zip(photographs.statistics, lost, strict=True)))
    kept = torch.ones(len(photographs.labels), dtype=torch.bool).to(photographs.several)
    kept[gone] = False
    patches = None if photographs.patches is None else photographs.patches[kept]
    few = {name: getattr(photographs, name)[kept] for name in ("images", "labels", "shares")}
    return replace(photographs, statistics=sums, patches=patches, groups=None, **few)
