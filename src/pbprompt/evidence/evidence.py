"""Photographs as sums, and some of them: all that is kept, however many they are.

    n_c = Σ_i [y_i = c]      s_c = Σ_i [y_i = c] x_i      M = Σ_i x_i x_iᵀ        S = M − Σ_c s_c s_cᵀ / n_c

The model itself rests on these sums alone. Sums of parts add up, so that photographs can be gathered in one
pass, in any order, by any number of processes; memory grows with the classes and not with the photographs.

S is what is left of M when the class means' part is taken away. In float64, and of features of length 1, that
costs at most ε ‖x‖² / σ² of a variance σ², ε = 2e-16: nothing above the floor of the variance
(`experts/gaussian.py`), however large the part that all images share.

How far to trust the model is chosen by photographs that are left out in turn, for which some stand: up to
4,096 all of them, of more those with the least

    key(x) = Σ_j a_j · bits(x_j)   mod 2⁶⁴,   a_j odd         a hash of the feature in float32

Which these are depends on nothing but the photographs: not on their order, nor on how they were shared out.
The least of two parts are the least of the least of each, so that evidence adds up as sums do.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.similarity import unit

BLOCK = 4096  # photographs that are added at once: one product of matrices each
TILES = 4  # strips of M, of which only what lies on and right of the diagonal is made


class Statistics(NamedTuple):
    """All that the model needs of its photographs, as sums: those of parts add up to those of the whole."""

    counts: Float[Tensor, " k"]
    sums: Float[Tensor, "k d"]
    moment: Float[Tensor, "d d"]
    """Σ_i x_i x_iᵀ"""

    @property
    def means(self) -> Float[Tensor, "k d"]:
        """x̄_c of classes that all have photographs."""
        return self.sums / self.counts.unsqueeze(1)

    @classmethod
    def none(cls, classes: int, width: int, device: torch.device | str = "cpu") -> Self:
        """Of no photograph."""
        sizes = (classes,), (classes, width), (width, width)
        return cls(*(torch.zeros(size, dtype=torch.float64, device=device) for size in sizes))

    @classmethod
    def of(
        cls,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        classes: int,
        weights: Float[Tensor, " n"] | None = None,
    ) -> Self:
        """`weights`: how often each photograph counts, once unless told."""
        made = cls.none(classes, images.shape[1], images.device)
        for at in range(0, len(images), BLOCK):  # without a copy of all images in float64
            rows = slice(at, at + BLOCK)
            made.add(images[rows], labels[rows], None if weights is None else weights[rows])
        return made.whole()

    def add(
        self,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """A block of photographs, in place; of the moment only what lies on and right of the diagonal."""
        images = images.double()
        often = images.new_ones(len(images)) if weights is None else weights.to(images)
        weighted = images if weights is None else often.unsqueeze(1) * images
        self.counts.index_add_(0, labels, often)
        self.sums.index_add_(0, labels, weighted)
        width = images.shape[1]
        ends = torch.linspace(0, width, min(TILES, width) + 1).round().long().tolist()
        for start, end in pairwise(ends):  # M is symmetric: five eighths of the whole product
            self.moment[start:end, start:].addmm_(images[:, start:end].T, weighted[:, start:])

    def whole(self) -> Self:
        """With the moment's other half too."""
        upper = self.moment.triu()
        return self._replace(moment=upper + upper.triu(1).T)

    def merged(self, other: Self) -> Self:
        """With the photographs of another part."""
        return type(self)(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def by_each(self, widths: Sequence[int]) -> list[Self]:
        """Of several backbones whose features are side by side (`evidence.joined`), each."""
        several, ends = len(widths), [0, *accumulate(widths)]
        blocks = [slice(*both) for both in pairwise(ends)]
        return [
            type(self)(self.counts, several**0.5 * self.sums[:, own], several * self.moment[own, own])
            for own in blocks
        ]

    def widened(self, classes: int) -> Self:
        """With room for so many classes at least, of which no photograph is known."""
        known = len(self.counts)
        return self.relabelled(torch.arange(known, device=self.counts.device), max(known, classes))

    def relabelled(self, labels: Int[Tensor, " k"], classes: int) -> Self:
        """With each class under another label, perhaps several under one."""
        counts, sums = self.counts.new_zeros(classes), self.sums.new_zeros(classes, self.sums.shape[1])
        return self._replace(
            counts=counts.index_add_(0, labels, self.counts), sums=sums.index_add_(0, labels, self.sums)
        )


KEPT = 4096  # photographs that stand for all where there are more


def unit_features(features: Float[Tensor, "n d"], widths: Sequence[int] = ()) -> Float[Tensor, "n d"]:
    """Image features of length 1; refused where one is no number, which its length then is not either.

    `widths`: of the parts that several backbones have, of which each then counts alike.
    """
    if not features.float().norm(dim=1).isfinite().all():
        raise InputError("the images' features hold NaN or infinity: encode them again, or leave them out")
    return joined([unit(part) for part in features.split(list(widths) or features.shape[1], dim=1)])


def joined(parts: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n d"]:
    """Features of length 1 of each backbone side by side, of length 1 together: [x_1, …, x_v]/√v."""
    return torch.cat(list(parts), dim=1) / len(parts) ** 0.5 if len(parts) > 1 else parts[0]


def apart(features: Float[Tensor, "n d"], widths: Sequence[int]) -> list[Float[Tensor, "n _"]]:
    """What `joined` was made of."""
    if len(widths) == 1:
        return [features]
    return [part * len(widths) ** 0.5 for part in features.split(list(widths), dim=1)]


class Kept(NamedTuple):
    """Photographs that stand for all."""

    images: Float[Tensor, "n d"]
    """float32"""
    labels: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]
    """how often each counts"""
    keys: Int[Tensor, " n"]

    @classmethod
    def of(
        cls,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        weights: Float[Tensor, " n"] | None = None,
        below: int | None = None,
    ) -> Self:
        """All of few, of many those with the least keys; `below`: none with a key above that."""
        images = images.float()
        weights = torch.ones(len(images), device=images.device) if weights is None else weights
        every = cls(images, labels, weights.double(), feature_keys(images))
        if below is not None:
            every = every.at((every.keys <= below).nonzero().squeeze(1))
        return every._least()

    def merged(self, other: Self) -> Self:
        """With those of another part."""
        return type(self)(*(torch.cat(both) for both in zip(self, other, strict=True)))._least()

    def in_order(self) -> Self:
        """By their keys; of equal ones that with the lower label comes first."""
        order = self.labels.argsort(stable=True)
        return self.at(order[self.keys[order].argsort(stable=True)])

    def _least(self) -> Self:
        if len(self.keys) <= KEPT:
            return self
        return type(self)(*(part[:KEPT] for part in self.in_order()))

    def at(self, rows: Int[Tensor, " m"]) -> Self:
        """Some of them."""
        return type(self)(*(part[rows] for part in self))


def kept_rows(images: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Which photographs `Kept.of` keeps, in its order."""
    rows = torch.arange(len(images), device=images.device, dtype=torch.float64)
    return Kept.of(images, labels, rows).weights.long()


class Evidence(NamedTuple):
    """All that `conjugate` learns from: parts of it add up."""

    statistics: Statistics
    kept: Kept

    @classmethod
    def of(
        cls,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        classes: int,
        weights: Float[Tensor, " n"] | None = None,
    ) -> Self:
        """Of features of length 1 that are all there. `weights`: how often each photograph counts."""
        return cls(Statistics.of(images, labels, classes, weights), Kept.of(images, labels, weights))

    @property
    def classes(self) -> int:
        return len(self.statistics.counts)

    def merged(self, other: Self) -> Self:
        """With the photographs of another part, whose labels mean the same."""
        mine, theirs = self.statistics.widened(other.classes), other.statistics.widened(self.classes)
        return type(self)(mine.merged(theirs), self.kept.merged(other.kept))

    def relabelled(self, labels: Int[Tensor, " k"], classes: int) -> Self:
        """With each class under another label."""
        kept = self.kept._replace(labels=labels[self.kept.labels])
        return type(self)(self.statistics.relabelled(labels, classes), kept)


class Gathering:
    """Evidence from a stream: one pass, of which no more than a block and what is kept are held at a time."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        self.images = 0  # that were added
        self._sums = Statistics.none(0, width, device)
        self._none = torch.empty(0, width, device=device), torch.empty(0, dtype=torch.long, device=device)
        self._kept = Kept.of(*self._none)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self.held = 0  # of them, those that wait for a block to be full

    def add(self, features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Image features of any length, and their labels."""
        images = unit_features(features)
        self.images += len(images)
        for rows in zip(images.split(BLOCK), labels.split(BLOCK), strict=True):
            self._waiting.append(rows)
            self.held += len(rows[1])
            if self.held >= BLOCK:
                self._add_block()

    def _add_block(self) -> None:
        if not self.held:
            return
        images, labels = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self.held = [], 0
        self._sums = self._sums.widened(int(labels.max()) + 1)
        self._sums.add(images, labels)
        full = len(self._kept.keys) == KEPT
        some = Kept.of(images, labels, below=int(self._kept.keys.max()) if full else None)
        if len(some.keys):
            self._kept = self._kept.merged(some)

    def tensors(self) -> dict[str, Tensor]:
        """All that it holds, as `from_tensors` takes it."""
        images, labels = (torch.cat(parts) for parts in zip(self._none, *self._waiting, strict=True))
        kept = {f"kept/{name}": value for name, value in self._kept._asdict().items()}
        return {**self._sums._asdict(), **kept, "waiting/images": images, "waiting/labels": labels}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Go on from there: what is added then gives the same bits as if nothing had come between."""
        sums = Statistics(*(tensors[name] for name in Statistics._fields))
        kept = Kept(*(tensors[f"kept/{name}"] for name in Kept._fields))
        waiting = tensors["waiting/images"], tensors["waiting/labels"]
        width = len(sums.moment)
        for rows, *others in ((sums.sums, sums.counts), (sums.moment,), kept, waiting):
            if rows.shape[1:] != (width,) or any(one.shape != rows.shape[:1] for one in others):
                raise ValueError("sums or photographs of different sizes")
        made = cls(width, sums.moment.device)
        made._sums, made._kept, made._waiting, made.held = sums, kept, [waiting], len(waiting[1])
        made.images = int(sums.counts.sum()) + made.held
        return made

    def evidence(self, classes: int | None = None) -> Evidence:
        """Of all that was added, for so many classes; unless told, for those that were met."""
        self._add_block()
        kept = self._kept if self.images <= KEPT else self._kept.in_order()
        return Evidence(self._sums.widened(classes or 0).whole(), kept)


def feature_keys(images: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """key of features in float32."""
    odd = torch.arange(images.shape[1], device=images.device) * 2654435761 + 40503
    bits = images.contiguous().view(torch.int32)
    if images.device.type == "cpu":
        return torch.mv(bits.long(), odd | 1)
    return (bits.long() * (odd | 1)).sum(1)
