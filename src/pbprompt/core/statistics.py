"""Photographs as sums: counts, class sums and second moments, all that a fit of the conjugate model needs.

    n_c = Σ_i [y_i = c]      s_c = Σ_i [y_i = c] x_i      M = Σ_i x_i x_iᵀ        S = M − Σ_c s_c s_cᵀ / n_c

Sums of parts add up, so that photographs can be gathered in one pass, in any order, by any number of
processes; memory grows with the classes and not with the photographs.

S is what is left of M when the class means' part is taken away. In float64, and of features of length 1, that
costs at most ε ‖x‖² / σ² of a variance σ², ε = 2e-16: nothing above the floor of the variance
(`core/gaussian.py`), however large the part that all images share.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 4096  # photographs that are added at once: one product of matrices each
TILES = 4  # strips of M, of which only what lies on and right of the diagonal is made


class Statistics(NamedTuple):
    """All that the model needs of its photographs, as sums: those of parts add up to those of the whole."""

    counts: Float[Tensor, " k"]
    sums: Float[Tensor, "k d"]
    moment: Float[Tensor, "d d"]
    """Σ_i x_i x_iᵀ"""

    @classmethod
    def of(
        cls,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        classes: int,
        weights: Float[Tensor, " n"] | None = None,
    ) -> Self:
        """`weights`: how often each photograph counts, once unless told."""
        if len(images) > BLOCK:
            return cls(*_by_blocks(images, labels, classes, weights))
        images = images.double()
        weights = images.new_ones(len(images)) if weights is None else weights.to(images)
        weighted = weights.unsqueeze(1) * images
        sums = images.new_zeros(classes, images.shape[1]).index_add_(0, labels, weighted)
        return cls(images.new_zeros(classes).index_add_(0, labels, weights), sums, images.T @ weighted)

    def merged(self, other: Self) -> Self:
        """With the photographs of another part."""
        return type(self)(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def widened(self, classes: int) -> Self:
        """With room for more classes, of which no photograph is known."""
        more = classes - len(self.counts)
        return self._replace(
            counts=torch.cat([self.counts, self.counts.new_zeros(more)]),
            sums=torch.cat([self.sums, self.sums.new_zeros(more, self.sums.shape[1])]),
        )

    def relabelled(self, labels: Int[Tensor, " k"], classes: int) -> Self:
        """With each class under another label, perhaps several under one."""
        counts, sums = self.counts.new_zeros(classes), self.sums.new_zeros(classes, self.sums.shape[1])
        return self._replace(
            counts=counts.index_add_(0, labels, self.counts), sums=sums.index_add_(0, labels, self.sums)
        )


class Sums:
    """Statistics that blocks of photographs are added to in place; classes come as they are met."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        zeros = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.classes = 0
        self._counts, self._sums, self._moment = zeros.new_zeros(16), zeros.new_zeros(16, width), zeros
        ends = torch.linspace(0, width, min(TILES, width) + 1).round().long().tolist()
        self._strips = list(pairwise(ends))

    def add(
        self,
        images: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        if not len(images):
            return
        images = images.double()
        self._make_room(int(labels.max()) + 1)
        often = images.new_ones(len(images)) if weights is None else weights.to(images)
        weighted = images if weights is None else often.unsqueeze(1) * images
        self._counts.index_add_(0, labels, often)
        self._sums.index_add_(0, labels, weighted)
        for start, end in self._strips:  # M is symmetric: five eighths of the whole product
            self._moment[start:end, start:].addmm_(images[:, start:end].T, weighted[:, start:])

    def _make_room(self, classes: int) -> None:
        """Twice as much as before, so that all the moving together costs no more than the last one."""
        self.classes = max(self.classes, classes)
        if classes > len(self._counts):
            room = max(classes, 2 * len(self._counts)) - len(self._counts)
            self._counts = torch.cat([self._counts, self._counts.new_zeros(room)])
            self._sums = torch.cat([self._sums, self._sums.new_zeros(room, self._sums.shape[1])])

    def tensors(self) -> dict[str, Tensor]:
        """What was summed so far, as `from_tensors` takes it; of the moment only what lies on and above."""
        counts, sums = self._counts[: self.classes], self._sums[: self.classes]
        return {"counts": counts, "sums": sums, "moment": self._moment}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Sums that go on from those: the same photographs then give the same bits."""
        counts, sums, moment = (tensors[name] for name in ("counts", "sums", "moment"))
        classes, width = sums.shape
        if counts.shape != (classes,) or moment.shape != (width, width):
            raise ValueError("sums of different sizes")
        made = cls(width, moment.device)
        made.classes, made._counts, made._sums, made._moment = classes, counts, sums, moment
        return made

    def statistics(self, classes: int | None = None) -> Statistics:
        """Of all that was added, with room for so many classes; unless told, for those that were met."""
        wide = self.classes if classes is None else classes
        self._make_room(wide)
        moment = self._moment.triu()
        return Statistics(self._counts[:wide].clone(), self._sums[:wide].clone(), moment + moment.triu(1).T)


def _by_blocks(
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    classes: int,
    weights: Float[Tensor, " n"] | None,
) -> Statistics:
    """Without a copy of all images in float64."""
    whole = Sums(images.shape[1], images.device)
    for at in range(0, len(images), BLOCK):
        rows = slice(at, at + BLOCK)
        whole.add(images[rows], labels[rows], None if weights is None else weights[rows])
    return whole.statistics(classes)
