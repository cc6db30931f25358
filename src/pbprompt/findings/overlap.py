"""Classes that the images themselves do not keep apart.

    overlap(a, b) = (#{i labelled a, taken for b} + #{i labelled b, taken for a}) / (n_a + n_b)

An image is taken for the class that the model without it finds likeliest.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

FEWEST = 2  # images of a pair that are confused: one may be chance, or a wrong label
SHARE = 0.05  # of their images


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
    kept = [pair for pair in found if pair.confused >= FEWEST and pair.share >= SHARE]
    return sorted(kept, key=lambda pair: (-pair.share, pair.first, pair.second))
