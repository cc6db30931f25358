"""What the default model is fitted to: labelled photographs, and how names and images are seen.

Nothing here changes: what is shown more, or has its classes called otherwise, is another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.evidence import Evidence, Statistics, kept_rows
from pbprompt.evidence.expert import Photographs, judged_rows
from pbprompt.evidence.experts.patches import Patches
from pbprompt.learners.memory import labels_among


class Sight(NamedTuple):
    """How images and names are seen, by one backbone or several side by side."""

    widths: tuple[int, ...]
    scales: tuple[float, ...]
    """exp(logit scale) of each"""
    read: Callable[[Sequence[Any]], Float[Tensor, "c d"]]
    """text features of names, of length 1 (`evidence.joined`); 0 where they say nothing"""
    named: tuple[str, ...] = ()
    """the backbones"""
    reads_names: bool = True


class Shown(NamedTuple):
    """Labelled photographs: all that a model is fitted to, but for images without a label."""

    names: tuple[Any, ...]
    """of the classes, in the order of the labels"""
    evidence: Evidence
    groups: Int[Tensor, " n"] | None = None
    """the series of each photograph that is kept; None: each is by itself"""
    patches: Patches | None = None
    """what was made of their patches, where these are compared"""

    @classmethod
    def nothing(cls, width: int, device: torch.device | str = "cpu", names: Sequence[Any] = ()) -> Self:
        none = torch.empty(0, width, device=device), torch.empty(0, dtype=torch.long, device=device)
        return cls(tuple(names), Evidence.of(*none, len(names)))

    @property
    def known(self) -> Int[Tensor, " k"]:
        """Labels of the classes with photographs: the posterior's columns."""
        return (self.evidence.statistics.counts > 0).nonzero().squeeze(1)

    @property
    def judged(self) -> Int[Tensor, " m"]:
        """Of the kept photographs those that are held out in turn."""
        return judged_rows(len(self.evidence.kept.labels), max(1, len(self.known)))

    @property
    def judged_groups(self) -> Int[Tensor, " m"] | None:
        """The series of these."""
        return None if self.groups is None else self.groups[self.judged]

    def photographs(self, sight: Sight) -> list[Photographs]:
        """Of the classes with photographs: all that the posterior is made of, as each backbone sees it."""
        known = self.known
        texts = sight.read([self.names[label] for label in known.tolist()])
        every = Photographs.by_each(self.evidence, known, sight.widths, texts, sight.scales)
        return [replace(each, groups=self.judged_groups, patches=self.patches) for each in every]

    def with_more(
        self,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        names: Sequence[Any],
        weights: Float[Tensor, " n"] | None = None,
        groups: Int[Tensor, " n"] | None = None,
    ) -> Self:
        """These photographs too, of length 1; labels are places among the names, of which some may be new."""
        new = [name for name, label in zip(names, labels_among(self.names, names), strict=True) if label < 0]
        every = (*self.names, *new)
        own = torch.tensor(labels_among(every, names), device=labels.device)[labels]
        evidence = self.evidence.merged(Evidence.of(images, own, len(every), weights))
        before, now = len(self.evidence.kept.labels), len(evidence.kept.labels)
        series = None
        if not before:
            series = None if groups is None else groups.to(labels)[kept_rows(images, own)]
        elif (groups is not None or self.groups is not None) and now == before + len(images):
            mine, theirs = (
                torch.arange(size).to(labels) if given is None else given.to(labels)
                for given, size in ((self.groups, before), (groups, len(images)))
            )
            series = torch.cat([mine, theirs + int(mine.max()) + 1])
        return type(self)(every, evidence, series)

    def regrouped(self, named: Mapping[str, str | None]) -> Self:
        """As if its classes had been called otherwise, several perhaps alike; without those named None."""
        statistics, kept = self.evidence
        names = [named.get(name, name) for name in self.names]
        new = list(dict.fromkeys(name for name in names if name is not None))
        place = torch.tensor([-1 if name is None else new.index(name) for name in names]).to(kept.labels)
        if self.patches and len(new) < len(names):
            raise InputError("a model that compares patches neither joins nor forgets classes: fit it again")
        gone, lost = place < 0, (place < 0)[kept.labels]
        if not torch.isclose(statistics.counts[gone].sum(), kept.weights[lost].sum()):
            raise InputError("the model keeps too few of its photographs to forget a class: fit it again")
        if not len(kept.labels):
            raise InputError("the model was fitted without any label: fit it again with the names you want")
        away = kept.images[lost].double()
        moment = statistics.moment - away.T @ (kept.weights[lost].unsqueeze(1) * away)
        few = Statistics(statistics.counts[~gone], statistics.sums[~gone], moment)
        rest = kept.at((~lost).nonzero().squeeze(1))
        evidence = Evidence(few.relabelled(place[~gone], len(new)), rest._replace(labels=place[rest.labels]))
        groups = None if self.groups is None else self.groups[~lost]
        return type(self)(tuple(new), evidence, groups, self.patches)
