"""What a learner takes as evidence besides labelled images that are there: small protocols, as those of
`learners/fitted.py`."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from pbprompt.evidence.evidence import Evidence
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.unlabelled import Absorbed
from pbprompt.vision.towers.backbone import Encoded


@runtime_checkable
class Streams(Protocol):
    """It is fitted by evidence that one pass over any number of images gathered."""

    def begin_with(self, evidence: Evidence, unlabelled: Float[Tensor, "m d"] | None = None) -> None:
        """`begin` without the images themselves; the evidence's labels are places among the classes."""


@runtime_checkable
class TakesUnlabelled(Protocol):
    """It learns from images without a label, beside those that have one."""

    @property
    def absorbed(self) -> Absorbed | None:
        """What became of them; None: there were none, or the model was loaded."""

    def add_unlabelled(self, images: Float[Tensor, "m d"], *, to_classify: bool = False) -> None:
        """Of a fitted method: as if fitted to these features of images without a label too;
        `to_classify`: they are themselves to be classified."""

    def begin_by_names(self, unlabelled: Float[Tensor, "m d"]) -> None:
        """`begin` without any labelled image."""


@runtime_checkable
class MultiLabel(Protocol):
    """It tells images that have several labels each, or none."""

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """What tells the labels; targets: 1 for a label, else 0."""
