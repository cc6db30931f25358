"""What is kept of photographs, however many they are: the sums of all, and some of them.

The model itself rests on the sums alone (`statistics.py`). How far to trust it is chosen by photographs
that are left out in turn, for which some stand: up to 4,096 all of them, of more those with the least

    key(x) = Σ_j a_j · bits(x_j)   mod 2⁶⁴,   a_j odd         a hash of the feature in float32

Which these are depends on nothing but the photographs: not on their order, nor on how they were shared out.
The least of two parts are the least of the least of each, so that evidence adds up as sums do.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.statistics import BLOCK, Statistics
from pbprompt.vision.similarity import unit

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
