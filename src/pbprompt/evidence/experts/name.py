"""The name alone, as zero-shot has it: E_c = e^scale x·(t_c − t̄).

Nothing of it was fitted to photographs, so that none need be held out.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from pbprompt.evidence.expert import HeldOut, Kind, Photographs, Seen


class Names(NamedTuple):
    """What tells the classes by their names."""

    directions: Float[Tensor, "k d"]
    """e^scale (t_c − t̄)"""

    def scores(self, images: Seen) -> Float[Tensor, "b k"]:
        return images.global_ @ self.directions.T

    def slopes(self, centre: Float[Tensor, " d"]) -> Float[Tensor, "k d"]:
        return self.directions

    def closeness(self, scores: Float[Tensor, "b k"]) -> None:
        return None


def fit(photographs: Photographs) -> tuple[Names, HeldOut]:
    made = Names(photographs.scale * (photographs.texts - photographs.texts.mean(0)))
    return made, HeldOut(made.scores(Seen(photographs.images)))


EXPERT = Kind(fit, Names, says="name", usual=1.0, from_photographs=False)
