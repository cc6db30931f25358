"""Photographs held out with their whole series, of which they are no evidence for each other.

Every expert is fitted again without a fold of series and asked about it (`series.series_folds`), up to
`FOLDS` times; classes of a single series cannot be judged. The closeness to the other classes is exact as it
is, since without its class a photograph is without its series.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from pbprompt.evidence.expert import Expert, HeldOutPhotographs, Kind, Photographs, Seen
from pbprompt.evidence.series import series_folds

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
        said: list[Tensor] = []
        near = []
        for seen, own in zip(photographs, kinds, strict=True):
            rest, asked = seen.without(rows), Seen(seen.images[rows])
            for kind in own:
                if kind.from_patches:  # which were held out with their series before
                    said.append(scores[len(said), rows])
                    continue
                expert: Expert = kind.fit(rest)[0]
                said.append(expert.scores(asked))
                near.append(expert.closeness(said[-1]))
        scores[:, rows] = torch.stack(said).to(scores)
        closeness[:, rows] = torch.stack([table for table in near if table is not None]).to(closeness)
        several[rows] = True
    return left._replace(scores=scores, closeness=closeness, several=several)
