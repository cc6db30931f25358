"""How to fit, whatever is fitted: one set of options, passed down to whoever knows what to make of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from pbprompt.learners.method import Method

Views = Literal["centre", "fresh"] | int
OnLog = Callable[[dict[str, float]], object]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Besides data, method and its settings.

    Args:
        seed: of start values and training.
        views: the centre crop alone, a number of augmented draws that the epochs take in turn, or fresh ones.
        shots: chooses a method's own number of epochs; None: those of the draw, or of the largest class.
        max_steps: stop after so many steps.
        folder: where training is logged and checkpointed, and goes on after a kill.
        progress: show bars.
        announce: told the method before the first step.
        on_log: told each record of the log.
        weights: how much each training item counts, by its path.
        unlabelled: features of images without a label, to learn from too.
        unseen_names: classes without images that will be asked about.
        group: how series of photographs are told that the items do not name: near-duplicates, none or, unless
            told, near-certain twins.
        hierarchy: what each class belongs to, and each group (`model/hierarchy.py`).
        groups: the series of each training item, for a method that leaves its images out.
    """

    seed: int = 1
    views: Views = "centre"
    shots: int | None = None
    max_steps: int | None = None
    folder: Path | None = None
    progress: bool = True
    announce: "Callable[[Method], object]" = lambda method: None
    on_log: OnLog | None = None
    weights: Mapping[str, float] | None = None
    unlabelled: Float[Tensor, "m d"] | None = None
    unseen_names: tuple[str, ...] = ()
    group: str = ""
    hierarchy: Mapping[str, str] = field(default_factory=dict)
    groups: Int[Tensor, " n"] | None = None


USUAL = FitOptions()
