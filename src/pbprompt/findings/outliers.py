"""The images that look least like any of the classes, their own included: the lowest hundredth.

    familiarity_i = #{j : odds_j ≤ odds_i} / n

odds_i is what the model without image i says for "one of the classes" against "something else". Every
collection has its least familiar images: whether they belong, a person says.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

SHARE = 0.01
FEWEST = 20  # images, below which a hundredth means nothing


@dataclass(frozen=True)
class Outlier:
    """Image `row`; of all images, this share looks no more like one of the classes."""

    row: int
    familiarity: float


def outliers(odds: Float[Tensor, " n"], share: float = SHARE) -> list[Outlier]:
    """The least familiar first."""
    if len(odds) < FEWEST:
        return []
    count = math.ceil(share * len(odds))
    lowest = odds.sort(stable=True).indices[:count]
    return [Outlier(int(row), (place + 1) / len(odds)) for place, row in enumerate(lowest)]
