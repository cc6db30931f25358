"""Photographs as sums: counts, class sums and second moments, all that a fit of the conjugate model needs.

    n_c = Σ_i [y_i = c]      s_c = Σ_i [y_i = c] x_i      M = Σ_i x_i x_iᵀ        S = M − Σ_c s_c s_cᵀ / n_c

Sums of parts add up, so that photographs can be gathered in one pass, in any order, by any number of
processes; memory grows with the classes and not with the photographs.

S is what is left of M when the class means' part is taken away. In float64, and of features of length 1, that
costs at most ε ‖x‖² / σ² of a variance σ², ε = 2e-16: nothing above the floor of the variance
(`experts/gaussian.py`), however large the part that all images share.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
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
